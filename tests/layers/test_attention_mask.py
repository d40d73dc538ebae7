"""Attention masks of every layer that takes one; their formula is in test_formulas.py."""

import keras
import numpy as np
import pytest
from cases import LAYERS
from harness import BACKEND, array, close, compiled, gradients, joined, precision
from keras import ops
from plain import made

from keras_vitx.layers import Attention, Block, SharedAttention

MASKABLE = [
    name
    for name, case in LAYERS.items()
    if "attention_mask" in case.make().call_signature_parameters and name != "Block/mixing"
]
# Elsewhere, where each operation is compiled, one of each kind.
HERE = [name for name in MASKABLE if BACKEND == "torch" or "/" not in name]
# Layers that count or shift what is left out (ContextBroadcasting, UniformHeads, sigmoid, BN), or
# have a fixed grid of tokens.
COUNTS = (
    *("uniform", "around", "residual_scale", "Positional"),
    *("spatial", "rotary", "sigmoid", "relu"),
)
TOKENWISE = [n for n in HERE if n != "SharedMapsBlock" and not any(word in n for word in COUNTS)]


def pairs(name, layer):
    """Return the number of queries and of keys."""
    attention, shape = getattr(layer, "attention", layer), LAYERS[name].shape
    tokens = (shape[0] if isinstance(shape[0], tuple) else shape)[0]
    return attention.maps_shape(tokens)[2:]


def test_every_attention_is_masked():
    takes = {name for name, case in LAYERS.items() if isinstance(case.make(), (Attention, Block))}
    assert takes - set(MASKABLE) == {"Block/mixing"}


@pytest.mark.parametrize("name", HERE)
def test_a_masked_row_is_finite(name):
    """Gradients of queries without a key, in training; in float16, the smallest range."""
    with precision("mixed_float16" if BACKEND == "torch" else "float32"):
        layer, x = made(name)
    mask = np.ones((3, *pairs(name, layer)), bool)
    mask[0] = mask[:, 0] = mask[:, :, -1] = False

    def total():
        y = layer(x, attention_mask=ops.convert_to_tensor(mask), training=True)
        return ops.sum(ops.cast(joined(y), "float32"))

    value, found = gradients(total, layer.trainable_variables)
    assert all(np.isfinite(each).all() for each in (value, *found))


@pytest.mark.parametrize("name", TOKENWISE)
def test_masked_tokens_are_as_if_left_out(name):
    layer, x = made(name)
    queries, keys = pairs(name, layer)
    # The last, because local convolutions read neighbors; class tokens are always there.
    kept = np.arange(5) < 3
    whole = kept[:, None] & kept
    tokens, *maps = x if isinstance(x, tuple) else (x,)
    short = [tokens[:, kept], *(one[:, :, kept][..., kept] for one in maps)]
    # What is left out is large.
    long = [np.where(kept[:, None], tokens, 7 + tokens), *(np.where(whole, m, 7) for m in maps)]
    found, expected = compiled(
        lambda: (
            layer(
                tuple(long) if maps else long[0], attention_mask=whole[None, :queries, 5 - keys :]
            ),
            layer(tuple(short) if maps else short[0]),
        )
    )
    for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        one = array(one)
        if one.ndim < 4:  # One vector per image, or tokens.
            close(one if one.ndim == 2 else one[:, kept[: one.shape[1]]], array(other))
            continue
        close(one[:, :, kept][..., kept], array(other))
        if not isinstance(layer.attention, SharedAttention):  # Maps for the next block.
            assert not one[..., ~whole].any()
