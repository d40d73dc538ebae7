"""The models that the device checks run: the smallest size of every family."""

import functools

import keras_vitx as kv

SMALLEST = {
    "ViT": kv.ViT_Ti,
    "CaiT": kv.CaiT_XXS24,
    "ConViT": kv.ConViT_Ti,
    "DeepViT": kv.DeepViT_S,
    "RefinedViT": kv.RefinedViT_S,
    "CBViT": kv.CBViT_Ti,
    "PiT": kv.PiT_B,
    "Mixer": kv.Mixer_S16,
}
# Kernels of a forward and a backward pass in float32, of timm 1.0.31 on the fake device.
TIMM = {"ViT": 478, "CaiT": 2012, "ConViT": 1020}
TINY_SIZES = {
    "ViT": (kv.ViT, {"dim": 32, "depth": 2, "num_heads": 2}),
    "CaiT": (kv.CaiT, {"dim": 32, "depth": 2, "num_heads": 2}),
    "ConViT": (kv.ConViT, {"dim": 36, "depth": 4, "num_heads": 4, "local_depth": 2}),
    "DeepViT": (kv.DeepViT, {"dim": 32, "depth": 2, "num_heads": 2}),
    "RefinedViT": (kv.RefinedViT, {"dim": 32, "depth": 3, "num_heads": 2}),
    "CBViT": (kv.CBViT, {"dim": 32, "depth": 2, "num_heads": 2}),
    "PiT": (kv.PiT, {"dims": (32, 64), "depths": (2, 2), "num_heads": (2, 4), "stride": 4}),
    "Mixer": (kv.Mixer, {"dim": 32, "depth": 2}),
}
TASK = {"patch_size": 8, "input_shape": (32, 32, 3), "classes": 10, "drop_path": 0.1}


def tiny(family, **changes):
    """Return a model with at least two blocks of each kind, as the loop over depth needs them."""
    make, size = TINY_SIZES[family]
    return make(**{**TASK, **size, **changes})


TINY = {family: functools.partial(tiny, family) for family in TINY_SIZES}


def compiled(model):
    """Return the model, compiled as recipes do."""
    model.compile(
        kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile="auto",
    )
    return model
