"""DeiT's recipe: ViT, ConViT and Context Broadcasting, from random weights on ImageNet.

    keras-vitx train ConViT_S imagenet --recipe deit

| model | top-1 | source | hardware |
|---|---|---|---|
| `ConViT_Ti`, `ConViT_S`, `ConViT_B` | 73.1, 81.3, 82.4 | ConViT, Table 1 | 8 GPUs |
| `CBViT_Ti`, `CBViT_S`, `CBViT_B` | 73.2, 80.5, 82.0 | Context Broadcasting, Table 6 | 8 V100 |
| `CBSViT_Ti`, `CBSViT_S`, `CBSViT_B` | 73.5, 80.4, 82.1 | the same | 8 V100 |
| `ViT_Ti`, `ViT_S`, `ViT_B` | 72.2, 79.9, 81.8 | the same | |

Settings of single models, as changes:

- `CBViT_Ti` and `CBViT_S` were trained with `repeats=1`.
- `CBViT_B` was trained with `warmup_epochs=10` (the paper gives only "increased") and a
  larger `drop_path`, whose value is lost; with distillation it was 0.2.
- ConViT's Table 2 trains on a fraction f of each class for 300 / f epochs.
- CIFAR-100 at 224 x 224 (ConViT, Appendix C): `epochs=1000` in the text, 3000 in Figure 11.

The released code lists a color jitter of 0.3 or 0.4, which RandAugment switches off, and
keeps a moving average of the weights that it does not evaluate. Its rate changes once per
epoch, and one epoch late. Repeated augmentation needs 3 epochs to see every image once.
"""

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.training.recipe import Recipe

RECIPE = Recipe(
    name="deit",
    epochs=300,
    batch_size=1024,
    learning_rate=5e-4,
    base_batch_size=512,
    warmup_epochs=5,
    warmup_learning_rate=1e-6,
    final_learning_rate=1e-5,
    weight_decay=0.05,
    augmentation=Augmentation(
        crop="random_resized",
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        flip=0.5,
        rand_augment="m9-mstd0.5-inc1",
        erasing=0.25,
        repeats=3,
    ),
    mixing=Mixing(mixup=0.8, cutmix=1.0, mixing_probability=1.0, switch=0.5),
    drop_path=0.1,
    drop_path_schedule="linear",
    label_smoothing=0.1,
    result="last",
)
