"""Transfer a model from ImageNet to a smaller data set, as CaiT does.

    keras-vitx train CaiT_S36 flowers --recipe transfer --weights imagenet

| data | changes | `CaiT_S36` | `CaiT_M36` |
|---|---|---|---|
| Cars | | 93.5 | 93.5 |
| Flowers | | 98.8 | 99.0 |
| iNaturalist 2018, 2019 | `epochs=360` | 77.1, 80.6 | 76.9, 81.7 |
| CIFAR-10, CIFAR-100 | `learning_rate=1e-5` | 99.2, 92.2 | 99.3, 93.3 |

Top-1 of models trained on ImageNet without distillation, at 224 x 224 (CaiT, Table 7; the
paper names no hardware). As `cait`, with a tenth of the learning rate (a hundredth for CIFAR),
1000 epochs, no distillation, and a crop ratio of 0.875 in evaluation.
"""

from keras_vitx.training.recipes import cait

RECIPE = cait.RECIPE.replace(
    name="transfer", epochs=1000, warmup_epochs=5, learning_rate=1e-4, crop_ratio=0.875
)
