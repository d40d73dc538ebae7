"""Train from random weights on images of 32 x 32; made the shipped checkpoint.

    keras-vitx train CaiT_Mini cifar10.npz --recipe small_images --backend torch

The checkpoint's README has the measured accuracy and training time.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.training.recipe import Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="small_images",
    schedule=Schedule(
        epochs=12, batch_size=128, learning_rate=2e-3, warmup_epochs=2, final_learning_rate=1e-5
    ),
    optimizer=Optimizer(clip_norm=1.0),
    augmentation=Augmentation(crop="shift"),
)
