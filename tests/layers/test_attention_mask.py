"""Attention masks of every layer that takes one; their formula is in test_formulas.py."""

import keras
import numpy as np
import pytest
from cases import LAYERS
from harness import (
    BACKEND,
    MIXED,
    array,
    close,
    compiled,
    gradients,
    joined,
    numbers,
    precision,
)
from keras import ops
from plain import X, built, made

from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ContextBroadcasting,
    RefinedAttention,
    TokenMixing,
)

MASKABLE = [
    name
    for name, case in LAYERS.items()
    if "attention_mask" in case.make().call_signature_parameters and name != "Block/mixing"
]
# Elsewhere, where each operation is compiled, one of each kind.
HERE = [name for name in MASKABLE if BACKEND == "torch" or "/" not in name]
NO_PADDING = (
    # Layers that count or shift the padding: ContextBroadcasting, UniformHeads, BN.
    *("Attention/uniform", "Attention/around", "Block/residual_scale"),
    *("SharedMapsBlock", "SharedMapsBlock/uniform"),
    # Layers with a fixed grid of tokens.
    *(name for name in HERE if "Positional" in name or "spatial" in name),
)


def pairs(name, layer):
    """Return the number of queries and of keys."""
    attention, shape = getattr(layer, "attention", layer), LAYERS[name].shape
    tokens = (shape[0] if isinstance(shape[0], tuple) else shape)[0]
    classes = getattr(attention, "num_class_tokens", None)
    if classes is None:
        return tokens, tokens
    return classes, tokens if attention.class_in_keys else tokens - classes


def test_every_attention_is_masked():
    takes = {name for name, case in LAYERS.items() if isinstance(case.make(), (Attention, Block))}
    assert takes - set(MASKABLE) == {"Block/mixing"}


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("policy", ("float32", MIXED[0]) if BACKEND == "torch" else ("float32",))
def test_a_masked_row(name, policy):
    """Queries without a key: finite, with finite gradients, in training too."""
    with precision(policy):
        layer, x = made(name)
    mask = np.ones((3, *pairs(name, layer)), bool)
    mask[0] = mask[:, 0] = mask[:, :, -1] = False
    for training in (False, True) if BACKEND == "torch" else (True,):

        def total(training=training):
            y = layer(x, attention_mask=ops.convert_to_tensor(mask), training=training)
            return ops.sum(ops.cast(joined(y), "float32"))

        value, found = gradients(total, layer.trainable_variables)
        assert all(np.isfinite(each).all() for each in (value, *found))


def padded(x):
    """Append two tokens of large numbers to tokens, or to tokens and shared maps."""
    if isinstance(x, tuple):
        tokens, maps = x
        return padded(tokens), np.pad(maps, ((0, 0), (0, 0), (0, 2), (0, 2)), constant_values=7.0)
    return np.concatenate([x, 7 + numbers((len(x), 2, x.shape[2]), seed=5)], axis=1)


@pytest.mark.parametrize("name", [name for name in HERE if name not in NO_PADDING])
def test_padding_changes_nothing(name):
    """A padded sequence gives what it gives without the padding."""
    layer, x = made(name)
    queries, keys = pairs(name, layer)
    added = 0 if hasattr(getattr(layer, "attention", layer), "num_class_tokens") else 2
    mask = np.zeros((3, queries + added, keys + 2), bool)
    mask[:, :queries, :keys] = True
    outputs = compiled(lambda: (layer(x), layer(padded(x), attention_mask=mask)))
    for short, long in zip(*map(keras.tree.flatten, outputs), strict=True):
        short, long = array(short), array(long)
        close(long[tuple(map(slice, short.shape))], short, 1e-5, name)
        if short.ndim == 4 and layer.attention.computes_maps:  # Maps for the next block.
            assert not long[:, :, queries:].any() and not long[..., keys:].any()


def test_a_convolution_reads_the_rows_of_padded_queries():
    """As the docstring of `Attention` says: mask the queries of the padding, too."""
    layer = built(RefinedAttention(2))
    keys, expected = np.arange(7) < 5, array(layer(X))
    masks = keys[None], keys[:, None] & keys
    only_keys, both = (array(layer(padded(X), attention_mask=mask))[:, :5] for mask in masks)
    close(both, expected)
    assert np.abs(only_keys - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("shape", ((3, 5), (4, 5, 5), (3, 4, 5), (3, 1, 5, 5), (5,)))
def test_a_mask_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"attention_mask.*\(3, 5, 5\).*Received: shape \("):
        Attention(2)(X, attention_mask=np.ones(shape, bool))


def test_attention_without_masks():
    block = Block(TokenMixing(4), MLP())
    with pytest.raises(ValueError, match=r"attention_mask.*TokenMixing"):
        block(X, attention_mask=np.ones((3, 5, 5), bool))


def test_a_masked_model_is_saved(tmp_path):
    tokens, mask = keras.Input((5, 8)), keras.Input((1, 5))
    block = Block(RefinedAttention(2), MLP(on_output=[ContextBroadcasting()]))
    model = keras.Model([tokens, mask], block(tokens, attention_mask=mask))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    mask = np.random.default_rng(3).random((3, 1, 5)) < 0.5
    expected = array(block(X, attention_mask=mask))
    for one in (model, loaded):
        close(array(one([X, mask.astype("float32")])), expected)
    assert np.abs(array(block(X)) - expected).max() > 1e-4
