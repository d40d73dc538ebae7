"""Refiner's standard recipe, that of its ablations, from random weights on ImageNet.

    keras-vitx train RefinedViT_Base imagenet --recipe refiner

`RefinedViT_Base` reaches 81.2 (Refiner, Table 11; 8 V100).

Differences between the paper's Table 8 and the released code, which is the default here: the
table has a learning rate of `5e-3 * batch_size / 256` and `mixup=0.2, cutmix=0`. The rate of
stochastic depth is 0.1 in both; the code has 0.2 for `RefinedViT_M`. Ten epochs of cool-down
follow, as in timm's trainer, and the moving average of the weights is the result.
"""

from keras_vitx.training.recipes import deepvit

RECIPE = deepvit.RECIPE.but(name="refiner", drop_path=0.1)
