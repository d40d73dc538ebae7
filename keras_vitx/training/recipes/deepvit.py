"""DeepViT's recipe, from random weights on ImageNet.

    keras-vitx train DeepViT_S imagenet --recipe deepvit

| model | top-1 (DeepViT, Tables 4 and 8; 8 V100) |
|---|---|
| `DeepViT_16B`, `DeepViT_24B`, `DeepViT_32B` | 79.1, 80.1, 80.9 |
| `DeepViT_S`, `DeepViT_L` | 82.3, 83.1 |

Differences between the paper's Section 5.1 and the released code, which is the default here:
the text has `warmup_epochs=3`, no rate of stochastic depth and no random erasing. Ten epochs
of cool-down follow, as in timm's trainer, and the moving average of the weights is the result.
All released files draw the interpolation of each image, bilinear or bicubic.

`DeepViT_32B` was trained with `mixup=0.1, cutmix=0`. The regularizer of Equation 6 is an
argument of the model, whose blocks have to share maps for it:
`kv.DeepViT_32B(similarity=0.1, similarity_depth=12)`. The text sets 4, 8 and 12 pairs in
models of 16, 24 and 32 blocks; the released `DeepViT_24B` was trained without it.
"""

from keras_vitx.training.recipes import deit

RECIPE = deit.RECIPE.replace(
    name="deepvit",
    batch_size=256,
    base_batch_size=None,
    cooldown_epochs=10,
    ema=0.99996,
    repeats=1,
    drop_path=0.2,
    train_interpolation="random",
)
