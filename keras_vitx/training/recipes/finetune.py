"""Fine-tune a checkpoint on a few thousand images or more.

    keras-vitx train CaiT_Mini fashion_mnist --weights cifar10 --recipe finetune

Settings of this package, not of a paper.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.training.recipe import Optimizer, Recipe, Schedule

RECIPE = Recipe(
    name="finetune",
    schedule=Schedule(
        epochs=10, batch_size=64, learning_rate=5e-4, warmup_epochs=1, final_learning_rate=1e-6
    ),
    optimizer=Optimizer(clip_norm=1.0),
    augmentation=Augmentation(crop="shift"),
)
