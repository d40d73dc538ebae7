"""The models that the device checks run."""

from functools import partial

import keras_vitx as kv

SIZES = (kv.ViT_Ti, kv.CaiT_XXS24, kv.ConViT_Ti, kv.DeepViT_S, kv.RefinedViT_S, kv.CBViT_Ti)
SIZES += kv.PiT_B, kv.Mixer_S16
SMALLEST = {size.__name__.partition("_")[0]: size for size in SIZES}
# Kernels of a forward and a backward pass in float32 on the fake device, of timm 1.0.31's of TINY.
TIMM = {"ViT": 137, "CaiT": 371, "ConViT": 349}
TASK = {"patch_size": 8, "input_shape": (32, 32, 3), "classes": 10, "drop_path": 0.1}
SIZE = {"dim": 32, "depth": 2, "num_heads": 2}
TINY_SIZES = {
    "ConViT": {"dim": 36, "depth": 4, "num_heads": 4, "local_depth": 2},
    "RefinedViT": {**SIZE, "depth": 3},
    "PiT": {"dims": (32, 64), "depths": (2, 2), "num_heads": (2, 4), "stride": 4},
    "Mixer": {"dim": 32, "depth": 2},
}
# At least two blocks of each kind, as the loop over depth needs them.
TINY = {name: partial(getattr(kv, name), **TASK, **TINY_SIZES.get(name, SIZE)) for name in SMALLEST}
# One block of each kind, which compiles faster.
SHALLOW = {
    **{family: {"depth": 1} for family in ("ViT", "DeepViT", "CBViT", "Mixer")},
    "CaiT": {"depth": 1, "class_depth": 1},
    "ConViT": {"depth": 2, "local_depth": 1},
    "RefinedViT": {},
    "PiT": {"depths": (1, 1)},
}


def compiled(model):
    """Return the model, compiled as recipes do."""
    optimizer = kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
