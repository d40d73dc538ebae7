"""Attention masks: every registered layer that takes one, and NumPy references."""

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    LAYERS,
    MIXED,
    array,
    close,
    gradients,
    joined,
    numbers,
    precision,
    randomize,
    takes_training,
)
from keras import ops
from plain import X, aggregate, built, dense, logits, mix, sigmoid

from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ContextBroadcasting,
    GatedPositionalAttention,
    HeadMixing,
    PositionalAttention,
    RefinedAttention,
    TokenMixing,
    UniformHeads,
)

MASKABLE = [
    name
    for name, case in LAYERS.items()
    if "attention_mask" in case.make().call_signature_parameters and name != "Block/mixing"
]
# Elsewhere, where each operation is compiled, one of each kind.
HERE = [name for name in MASKABLE if BACKEND == "torch" or "/" not in name]
every_layer = pytest.mark.parametrize("name", HERE)
NO_MASK = (
    "Attention/uniform",
    "Attention/around",
    "Block/residual_scale",
    "CarryingBlock",
    "CarryingBlock/uniform",
)
"""Cases with layers that count or shift the padding: ContextBroadcasting, UniformHeads, BN."""
BY_GRID = "Positional", "spatial"
"""Parts of the names of layers with a fixed grid of tokens."""


def made(name):
    """Return a built layer with random weights, its input, and (batch, queries, keys)."""
    case = LAYERS[name]
    layer = case.make()
    layer.build(case.inputs(lambda shape: (None, *shape)))
    randomize(layer)
    return layer, case.inputs(lambda shape: numbers((3, *shape))), pairs(name, layer, case)


def pairs(name, layer, case):
    attention = getattr(layer, "attention", layer)
    tokens = (case.shape[0] if isinstance(case.shape[0], tuple) else case.shape)[0]
    classes = getattr(attention, "num_class_tokens", None)
    if classes is None:
        return 3, tokens, tokens
    return 3, classes, tokens if attention.class_in_keys else tokens - classes


def run(layer, x, mask, training=False, **arguments):
    """Run a layer with a mask `(batch, queries, keys)`, or None."""
    mask = None if mask is None else ops.convert_to_tensor(mask)
    if takes_training(layer):
        arguments["training"] = training
    return layer(x, attention_mask=mask, **arguments)


def test_every_attention_is_masked():
    assert {
        "Attention",
        "TalkingHeadsAttention",
        "DeepAttention",
        "RefinedAttention",
        "PositionalAttention",
        "GatedPositionalAttention",
        "SharedAttention",
        "AccumulatingAttention",
        "ClassAttention",
        "Block",
        "PostNormBlock",
        "CarryingBlock",
        "ClassBlock",
    } == {name.split("/")[0] for name in MASKABLE}


@pytest.mark.skipif(BACKEND != "torch", reason="test_padding_changes_nothing is sharper")
@every_layer
def test_a_mask_that_allows_everything(name):
    layer, x, shape = made(name)
    if name == "GatedPositionalAttention/constant":
        # What is stored are maps, whose rows sum to 1, and gates.
        layer.content_gate.assign(np.full(4, 0.7))
        layer.by_row.assign(np.full((4, 2, 2), 0.3 / 2))
        layer.by_column.assign(np.full((4, 3, 3), 1 / 3))
    expected = array(joined(run(layer, x, None)))
    close(array(joined(run(layer, x, np.ones(shape, bool)))), expected, 1e-5, name)


@every_layer
@pytest.mark.parametrize("policy", ("float32", MIXED[0]) if BACKEND == "torch" else ("float32",))
def test_a_masked_row(name, policy):
    """Queries without a key: finite, with finite gradients, in training too."""
    with precision(policy):
        layer, x, shape = made(name)
    mask = np.ones(shape, bool)
    mask[0] = mask[:, 0] = mask[:, :, -1] = False
    for training in (False, True) if BACKEND == "torch" else (True,):

        def total(training=training):
            return ops.sum(ops.cast(joined(run(layer, x, mask, training)), "float32"))

        assert np.isfinite(array(total()))
        if layer.trainable_variables:
            _, found = gradients(total, layer.trainable_variables)
            assert all(np.isfinite(gradient).all() for gradient in found)


def padded(x):
    """Append two tokens of large numbers to tokens, or to tokens and carried maps."""
    if isinstance(x, tuple):
        tokens, maps = x
        return padded(tokens), np.pad(maps, ((0, 0), (0, 0), (0, 2), (0, 2)), constant_values=7.0)
    return np.concatenate([x, 7 + numbers((len(x), 2, x.shape[2]), seed=5)], axis=1)


@pytest.mark.parametrize(
    "name",
    [name for name in HERE if not any(part in name for part in BY_GRID) and name not in NO_MASK],
)
def test_padding_changes_nothing(name):
    """A padded sequence gives what it gives without the padding."""
    layer, x, (batch, queries, keys) = made(name)
    own_queries = "Class" not in name or "Context" in name
    mask = np.zeros((batch, queries + 2 * own_queries, keys + 2), bool)
    mask[:, :queries, :keys] = True
    outputs = zip(
        keras.tree.flatten(run(layer, x, None)),
        keras.tree.flatten(run(layer, padded(x), mask)),
        strict=True,
    )
    for short, long in outputs:
        short, long = array(short), array(long)
        kept = tuple(map(slice, short.shape))
        close(long[kept], short, 1e-5, name)
        if short.ndim == 4 and layer.attention.computes_maps:  # Maps for the next block.
            assert not long[:, :, queries:].any() and not long[..., keys:].any()


REFERENCES = {
    "plain": lambda: Attention(2),
    "talking": lambda: Attention(4, on_logits=[HeadMixing()], on_weights=[HeadMixing(name="a")]),
    "uniform": lambda: Attention(1, head_size=4, on_weights=[UniformHeads()]),
}
MASK = np.random.default_rng(3).random((3, 5, 5)) < 0.5
MASK[0, 1] = False


def masked_softmax(x, mask):
    exponents = np.where(mask, np.exp(x - x.max(-1, keepdims=True)), 0)
    sums = exponents.sum(-1, keepdims=True)
    return np.divide(exponents, sums, out=np.zeros_like(exponents), where=sums > 0)


@pytest.mark.parametrize("mask", (MASK, MASK[:, :1], MASK[0], MASK[:, :, 1:2]), ids=np.shape)
@pytest.mark.parametrize("name", REFERENCES)
def test_the_formula(name, mask):
    layer = built(REFERENCES[name]())
    query, key, value = np.split(dense(X, layer.qkv), (layer.width, 2 * layer.width), axis=-1)
    pairs = np.broadcast_to(mask, (3, 5, 5))[:, None]
    maps = logits(query, key, layer.num_heads)
    for part in layer.on_logits:
        maps = mix(maps, part)
    maps = masked_softmax(maps, pairs)
    for part in layer.on_weights:
        if isinstance(part, UniformHeads):
            maps = np.concatenate([maps, np.where(pairs, 1 / 5, 0)], axis=1)
        else:
            maps = np.where(pairs, mix(maps, part), 0)
    expected = dense(aggregate(maps, value), layer.proj)
    y, found = layer(X, attention_mask=mask, return_attention_scores=True)
    close(array(found), maps)
    close(array(y), expected)
    close(array(layer(X, attention_mask=mask)), expected)
    close(array(layer(X, attention_mask=mask, training=True)), expected)


def test_positional_attention():
    mask = np.random.default_rng(3).random((3, 6, 6)) < 0.5
    mask[0, 1] = False
    x = numbers((3, 6, 8))
    for kind in (PositionalAttention, GatedPositionalAttention):
        layer = built(kind(4, grid=(2, 3)), x)
        query, key = np.split(dense(x, layer.qk), 2, axis=-1)
        positional = array(layer.over_pairs(*layer.positions(), ops.add))[None]
        content = logits(query, key, 4)
        if kind is PositionalAttention:
            maps = masked_softmax(content + positional, mask[:, None])
        else:
            gates = sigmoid(array(layer.gating_param.value))[:, None, None]
            maps = (1 - gates) * masked_softmax(content, mask[:, None])
            maps = maps + gates * masked_softmax(positional, mask[:, None])
        expected = dense(aggregate(maps, dense(x, layer.v)), layer.proj)
        y, found = layer(x, attention_mask=mask, return_attention_scores=True)
        close(array(found), maps)
        close(array(y), expected)
        close(array(layer(x, attention_mask=mask)), expected)


def test_the_fused_kernel_takes_the_mask(monkeypatch):
    layer = built(Attention(2))
    monkeypatch.setattr(layer, "weights_of", None)
    layer(X, attention_mask=MASK)


def test_a_convolution_reads_the_rows_of_padded_queries():
    """As the docstring of `Attention` says: mask the queries of the padding, too."""
    layer = built(RefinedAttention(2))
    keys = np.arange(7) < 5
    x = padded(X)
    only_keys = array(layer(x, attention_mask=keys[None]))[:, :5]
    both = array(layer(x, attention_mask=keys[:, None] & keys))[:, :5]
    expected = array(layer(X))
    close(both, expected)
    assert np.abs(only_keys - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("shape", ((3, 5), (4, 5, 5), (3, 4, 5), (3, 1, 5, 5), (5,)))
def test_a_mask_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"attention_mask.*\(3, 5, 5\).*Received: shape \("):
        Attention(2)(X, attention_mask=np.ones(shape, bool))


def test_attention_without_masks():
    block = Block(TokenMixing(4), MLP())
    with pytest.raises(ValueError, match=r"attention_mask.*TokenMixing"):
        block(X, attention_mask=MASK)


def test_a_masked_model_is_saved(tmp_path):
    tokens, mask = keras.Input((5, 8)), keras.Input((1, 5))
    block = Block(RefinedAttention(2), MLP(on_output=[ContextBroadcasting()]))
    model = keras.Model([tokens, mask], block(tokens, attention_mask=mask))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    given = [X, MASK[:, 1:2].astype("float32")]
    expected = array(model(given))
    close(array(loaded(given)), expected)
    close(array(block(X, attention_mask=MASK[:, 1:2])), expected)
    assert np.abs(array(block(X)) - expected).max() > 1e-4
