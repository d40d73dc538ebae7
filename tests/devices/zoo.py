"""The models that the device checks run: the smallest size of every family."""

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
TASK = {"input_shape": (32, 32, 3), "classes": 10, "drop_path": 0.1}
TINY = {
    "ViT": lambda **k: kv.ViT(dim=32, depth=2, num_heads=2, patch_size=8, **TASK | k),
    "CaiT": lambda **k: kv.CaiT(dim=32, depth=2, num_heads=2, patch_size=8, **TASK | k),
    "ConViT": lambda **k: kv.ConViT(
        dim=36, depth=4, num_heads=4, local_depth=2, patch_size=8, **TASK | k
    ),
    "DeepViT": lambda **k: kv.DeepViT(dim=32, depth=2, num_heads=2, patch_size=8, **TASK | k),
    "RefinedViT": lambda **k: kv.RefinedViT(dim=32, depth=3, num_heads=2, patch_size=8, **TASK | k),
    "CBViT": lambda **k: kv.CBViT(dim=32, depth=2, num_heads=2, patch_size=8, **TASK | k),
    "PiT": lambda **k: kv.PiT(
        dims=(32, 64), depths=(2, 2), num_heads=(2, 4), patch_size=8, stride=4, **TASK | k
    ),
    "Mixer": lambda **k: kv.Mixer(dim=32, depth=2, patch_size=8, **TASK | k),
}


def compiled(model):
    """Return the model, compiled as recipes do."""
    model.compile(
        kv.training.AdamW(1e-3, weight_decay=0.05, global_clipnorm=1.0),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile="auto",
    )
    return model
