"""Combine two papers: the attention or MLP of one in the network of another.

    python examples/crossings.py

Trains each pair of models for one epoch on the bundled sample, with the same seed. One
epoch shows that a combination trains, not which of the two is better.
"""

import keras_vitx as kv
from keras_vitx import layers

import keras

SIZE = {"dim": 64, "depth": 4, "num_heads": 4, "patch_size": 4}
TASK = {"input_shape": (32, 32, 3), "classes": 10}


def re_attention_in_convit(index):
    """Apply DeepViT's re-attention to ConViT's maps, in GPSA and plain blocks."""
    if index < 3:
        return layers.GatedPositionalAttention(4, on_weights=[layers.ReAttention()])
    return layers.DeepAttention(4, qkv_bias=False)


def broadcasting_in_cait(index):
    """Add Context Broadcasting at the end of CaiT's MLPs."""
    return layers.MLP(on_output=[layers.ContextBroadcasting()])


def sharing_in_cb_vit(index):
    """Share maps in CB-ViT as in Refined-ViT: every second block reuses the previous maps."""
    return layers.SharedAttention(4) if index % 2 else layers.Attention(4)


CROSSINGS = {
    "ConViT, re-attention": (kv.ConViT, {"local_depth": 3}, {"attention": re_attention_in_convit}),
    "CaiT, Context Broadcasting": (kv.CaiT, {"layer_scale": 0.1}, {"mlp": broadcasting_in_cait}),
    "CB-ViT, shared attention": (kv.CBViT, {}, {"attention": sharing_in_cb_vit}),
}


def accuracy(family, **arguments):
    """Train a new model and return its test accuracy."""
    keras.utils.set_random_seed(0)
    model = family(**SIZE, **TASK, **arguments)
    # Within one epoch, small models learn little from shifted and flipped images.
    history = kv.fit(model, "fashion_mnist", epochs=1, augmentation=None)
    return history.history["val_accuracy"][-1]


print(f"{'':28}{'unmodified':>12}{'crossed':>12}")
for name, (family, arguments, crossing) in CROSSINGS.items():
    plain = accuracy(family, **arguments)
    crossed = accuracy(family, **arguments, **crossing)
    print(f"{name:28}{plain:12.1%}{crossed:12.1%}", flush=True)
