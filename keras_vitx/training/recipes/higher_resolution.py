"""Fine-tune at a higher resolution, as DeiT and CaiT do.

    keras-vitx train CaiT_S24 imagenet --recipe higher_resolution --image-size 384 \\
        --weights runs/CaiT_S24-1/last.keras

| model, trained at 224 | top-1 at 384 (CaiT, Table 3) |
|---|---|
| `CaiT_XXS24`, `CaiT_XXS36` | 80.4, 81.8 |
| `CaiT_XS24`, `CaiT_XS36` | 83.8, 84.3 |
| `CaiT_S24`, `CaiT_S36`, `CaiT_S48` | 84.3, 85.0, 85.1 |
| `CaiT_M24`, `CaiT_M36` | 84.5, 84.9 |

The weights are those of the training at 224. Loading them resamples positions bicubically as timm;
DeiT's code as `model.at_size((384, 384), antialias=False)`, 5 to 8 % apart; Refiner's bilinearly.
DeiT's command keeps its code's default of five epochs of warm-up: `warmup_epochs=5`.
Refined-ViT reaches 84.6 (S), 85.6 (M) and 85.7 (L) at 384, and 85.9 (L) at 448 (Table 7); with a
crop ratio of 1.13, the calibration of the receptive field, 85.98 (Table 5).
"""

from keras_vitx.training.recipes import deit

RECIPE = deit.RECIPE.replace(
    name="higher_resolution",
    epochs=30,
    batch_size=512,
    learning_rate=5e-6,
    warmup_epochs=0,
    decay="constant",
    weight_decay=1e-8,
    drop_path=None,
)
