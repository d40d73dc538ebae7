"""CaiT's recipe, from random weights on ImageNet.

    keras-vitx train CaiT_S24 imagenet --recipe cait

| model | top-1 at 224 (CaiT, Table 3; the paper names no hardware) |
|---|---|
| `CaiT_XXS24`, `CaiT_XXS36` | 77.6, 79.1 |
| `CaiT_XS24`, `CaiT_XS36` | 81.8, 82.6 |
| `CaiT_S24`, `CaiT_S36`, `CaiT_S48` | 82.7, 83.3, 83.5 |
| `CaiT_M24`, `CaiT_M36` | 83.4, 83.8 |

As `deit`, with more epochs and twice the learning rate (Section 4.3; 5e-4 for 512 images is
the same rate). The rate of stochastic depth is that of the size (Table 4), the same in every
block, so the recipe leaves it as it was built; in a model of your own, `drop_path=0.1,
drop_path_schedule="constant"` sets it. The published weights were trained with hard distillation
from a RegNetY-16GF, see `kv.training.Distillation`.
"""

from keras_vitx.training.recipes import deit

RECIPE = deit.RECIPE.replace(
    name="cait",
    epochs=400,
    warmup_epochs=5,
    learning_rate=1e-3,
    base_batch_size=1024,
    drop_path=None,
    drop_path_schedule="constant",
)
