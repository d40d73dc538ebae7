"""Fine-tune a checkpoint on some dozens of images or more.

    keras-vitx train CaiT_Mini fashion_mnist --weights cifar10 --recipe finetune

Settings of this package, not of a paper. Fewer than 1,300 images have smaller batches, down to 8,
and fewer than 160 more epochs, so that there are 200 updates.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.training.recipe import Recipe

RECIPE = Recipe(
    name="finetune",
    epochs=10,
    batch_size=64,
    learning_rate=5e-4,
    warmup_epochs=1,
    warmup_learning_rate=1e-5,
    final_learning_rate=1e-6,
    min_updates=200,
    clip_norm=1.0,
    augmentation=Augmentation(crop="shift"),
)
