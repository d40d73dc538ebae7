"""Cross two papers: an attention or an MLP of one, in the network of another.

    python examples/crossings.py

Each pair is trained for one epoch on the sample that comes with the package, from the
same seed. One epoch shows that a crossing trains, not which of the two is better.
"""

import keras

import keras_vitx as kv
from keras_vitx import layers

SIZE = {"dim": 64, "depth": 4, "num_heads": 4, "patch_size": 4}
TASK = {"input_shape": (32, 32, 3), "classes": 10}


def re_attention_in_convit(index):
    """DeepViT's re-attention over ConViT's maps, gated ones and plain ones."""
    if index < 3:
        return layers.GatedPositionalAttention(4, on_weights=[layers.ReAttention()])
    return layers.DeepAttention(4, qkv_bias=False)


def broadcasting_in_cait(index):
    """Context Broadcasting at the end of CaiT's MLPs."""
    return layers.MLP(on_output=[layers.ContextBroadcasting()])


def sharing_in_cb_vit(index):
    """Refined-ViT's sharing in CB-ViT: every second block takes the maps of the one before."""
    return layers.SharedAttention(4) if index % 2 else layers.Attention(4)


CROSSINGS = {
    "ConViT, re-attention": (
        kv.ConViT,
        {"local_depth": 3},
        {"attention": re_attention_in_convit},
    ),
    "CaiT, Context Broadcasting": (
        kv.CaiT,
        {"layer_scale": 0.1},
        {"mlp": broadcasting_in_cait},
    ),
    "CB-ViT, shared attention": (
        kv.CBViT,
        {},
        {"attention": sharing_in_cb_vit},
    ),
}


def accuracy(family, **arguments):
    """Train a new model; return its accuracy on the test images."""
    keras.utils.set_random_seed(0)
    model = family(**SIZE, **TASK, **arguments)
    # In one epoch, shifted and flipped images teach small models little.
    history = kv.fit(model, "fashion_mnist", epochs=1, augmentation=None, verbose=0)
    return history.history["val_accuracy"][-1]


print(f"{'':28}{'unmodified':>12}{'crossed':>12}")
for name, (family, arguments, crossing) in CROSSINGS.items():
    plain = accuracy(family, **arguments)
    crossed = accuracy(family, **arguments, **crossing)
    print(f"{name:28}{plain:12.1%}{crossed:12.1%}", flush=True)
