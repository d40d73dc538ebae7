"""Refiner's advanced recipe, with token labels, from random weights on ImageNet.

    keras-vitx train RefinedViT_S imagenet --with dense_head=true --recipe refiner_advanced

`RefinedViT_S`, `RefinedViT_M` and `RefinedViT_L` reach 83.6, 84.6 and 84.9 (Refiner, Table 7;
8 V100), created with `dense_head=True` and trained with labels per patch from an NFNet-F6 (see
`kv.training.TokenLabels`), which also are the class head's target, pooled over the crop: the
released loss never reads the image's own label. Without them, every patch has that label.

Differences between the paper's Table 8 and the released code, which is the default here: the
table has a learning rate of `5e-3 * batch_size / 512` and `drop_path=0.1 * blocks / 12`, with
which the sizes are built; the code has 0.2 for S and 0.25 for M and L. Both have MixUp and CutMix,
to which the code adds MixToken.
"""

from keras_vitx.training.recipes import refiner

RECIPE = refiner.RECIPE.replace(
    name="refiner_advanced",
    batch_size=512,
    drop_path=0.2,
    similarity=0.1,
    similarity_depth=12,
    mix_token=True,
)
