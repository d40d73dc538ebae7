"""Train from random weights on images of 32 x 32.

    keras-vitx train CaiT_Mini cifar10.npz --recipe small_images

Settings of this package, not of a paper: DeiT's regularization made lighter, for small images
and networks. `weights/README.md` has the accuracies of the shipped checkpoints, and says with
which settings they were trained.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.training.recipe import Recipe

RECIPE = Recipe(
    name="small_images",
    epochs=200,
    batch_size=128,
    learning_rate=3e-3,
    warmup_epochs=10,
    warmup_learning_rate=1e-6,
    final_learning_rate=1e-5,
    algorithm="muon",
    weight_decay=0.05,
    clip_norm=1.0,
    ema=0.999,
    # RandAugment's fifth of ten magnitudes: at 32 x 32 the ninth hides the object.
    augmentation=Augmentation(crop="shift", rand_augment="m5-mstd0.5-inc1", erasing=0.1),
    mixing=Mixing(mixup=0.2, cutmix=1.0, mixing_probability=0.5),
    drop_path=0.1,
)
