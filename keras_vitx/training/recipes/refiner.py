"""Refiner's standard recipe, that of its ablations, from random weights on ImageNet.

    keras-vitx train RefinedViT_Base imagenet --recipe refiner

`RefinedViT_Base`, whose stem has the convolutions of the released code, is the row of 83.1 of
Refiner's Table 11 ("More convs for patch embedding"; also Table 9). The recipe alone is its first
row, 81.2, with `conv_stem=False` (8 V100).

Differences between the paper's Table 8 and the released code, which is the default here: the
table has a learning rate of `5e-3 * batch_size / 256` and `mixup=0.2, cutmix=0`. The code adds
the similarity of neighboring maps to the loss, with weight 0.1, an argument of the model
(`kv.RefinedViT_S(similarity=0.1, similarity_depth=2)`): its files ask for 12 pairs
(`cos_reg_component`), but its trainer builds the loss with the default of 2. The rate of
stochastic depth is 0.1 in both; the code has 0.2 for `RefinedViT_M`. Ten epochs of cool-down
follow, as in timm's trainer, and the moving average of the weights is the result.
"""

from keras_vitx.training.recipes import deepvit

RECIPE = deepvit.RECIPE.replace(name="refiner", drop_path=0.1)
