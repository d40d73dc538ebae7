"""ConViT's recipe for its wider models, from random weights on ImageNet.

    keras-vitx train ConViT_S_Plus imagenet --recipe convit_plus

| model | top-1 (ConViT, Table 1; 8 GPUs) |
|---|---|
| `ConViT_Ti_Plus`, `ConViT_S_Plus`, `ConViT_B_Plus` | 76.7, 82.2, 82.5 |
| `ViT_Ti_Plus`, `ViT_S_Plus`, `ViT_B_Plus` | 75.9, 79.0, 77.5 |

As `deit`, with a lower learning rate and half the batch (ConViT, Section 3).
"""

from keras_vitx.training.recipes import deit

RECIPE = deit.RECIPE.replace(name="convit_plus", batch_size=512, learning_rate=4e-4)
