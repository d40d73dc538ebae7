"""What the formulas do not say of layers over tokens, heads and blocks: starts, draws, names."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from plain import X, attend, built, dense, norm, softmax

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ClassAttention,
    ContextBroadcasting,
    DenseHead,
    DistilledHead,
    DropPath,
    GatedPositionalAttention,
    LayerScale,
    PatchEmbedding,
    SqueezeExcitation,
    TalkingHeadsAttention,
    TokenMixing,
)
from keras_vitx.layers import ops as layer_ops


def test_the_fused_kernel_runs_where_it_may(monkeypatch):
    fused = []
    whole = layer_ops.attention
    given = lambda *a, **k: fused.append(1) or whole(*a, **k)  # noqa: E731
    monkeypatch.setattr(layer_ops, "attention", given)
    layer = built(Attention(2, dropout=0.5))
    layer(X)
    layer(X, attention_mask=np.ones((1, 5), bool))
    built(GatedPositionalAttention(4, grid=(1, 5)))(X)
    assert len(fused) == 3
    layer(X, training=True)
    layer(X, return_attention_scores=True)
    built(TalkingHeadsAttention(2))(X)
    assert len(fused) == 3


def test_dropout_of_maps_and_outputs():
    x = numbers((64, 5, 8))
    layer = built(Attention(2, dropout=0.5), x)
    assert np.abs(array(layer(x, training=True)) - array(layer(x))).max() > 0.1
    layer = built(Attention(2, proj_dropout=0.5), x)
    dropped, whole = array(layer(x, training=True)), array(layer(x))
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    close(dropped[kept], 2 * whole[kept])
    layer = built(MLP(dropout=0.5), x)
    assert 0.4 < (array(layer(x, training=True)) == 0).mean() < 0.6


def test_names_of_talking_heads():
    paths = {v.path.split("/", 1)[1] for v in built(TalkingHeadsAttention(2)).weights}
    parts = ("qkv", "proj", "proj_l", "proj_w")
    assert paths == {f"{part}/{v}" for part in parts for v in ("kernel", "bias")}


def test_widths():
    assert built(MLP(2.6)).fc1.units == 20  # int(20.8)
    assert built(MLP(hidden=7, mlp_ratio=2)).fc1.units == 7
    assert built(TokenMixing(6)).mlp.fc1.units == 6
    assert built(SqueezeExcitation(ratio=2)).fc1.units == 4
    assert built(SqueezeExcitation(ratio=16)).fc1.units == 1
    assert built(ContextBroadcasting()).count_params() == 0
    assert LayerScale(1, scalar=True)(X).shape == X.shape
    images = numbers((2, 8, 12, 3))
    one, other = (built(PatchEmbedding(6, 4, stride), images) for stride in (4, None))
    np.testing.assert_array_equal(array(one(images)), array(other(images)))


@pytest.mark.parametrize(
    ("make", "name"),
    (
        (lambda start: LayerScale(start), "gamma"),
        (lambda s: ContextBroadcasting(scale=s), "scaling"),
    ),
    ids=("LayerScale", "ContextBroadcasting"),
)
def test_starts_from_a_number_or_an_initializer(make, name):
    layer = make(0.3)
    layer.build((None, 5, 400))
    close(array(getattr(layer, name).value), np.full(400, 0.3))
    start = keras.initializers.RandomUniform(0.0, 2e-5)
    drawn = []
    for _ in "ab":
        layer = make(start)
        layer.build((None, 5, 400))
        drawn.append(array(getattr(layer, name).value))
    for values in drawn:
        assert 0 <= values.min() < 2e-6
        assert 1.8e-5 < values.max() <= 2e-5
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-6, "every layer draws its own"


def test_a_block_starts_from_its_layer_scale():
    layer = Block(Attention(2), MLP(), layer_scale=1e-5, scalar_scale=True)
    layer.build(X.shape)
    for scale in (layer.ls1, layer.ls2):
        close(array(scale.gamma.value), [1e-5])


def test_drop_path():
    rate = 0.3
    x = 1 + np.abs(numbers((400, 3, 4)))
    layer = DropPath(rate, seed=0)
    np.testing.assert_array_equal(array(layer(x)), x)
    shares = []
    for _ in range(10):
        y = array(layer(x, training=True))
        kept = y[:, 0, 0] != 0
        close(y[kept], x[kept] / (1 - rate))
        assert np.abs(y[~kept]).max() == 0
        shares.append(kept.mean())
    assert abs(np.mean(shares) - (1 - rate)) < 0.03  # four standard deviations
    assert len(set(shares)) > 1, "each call draws anew"
    off = DropPath(0.0)
    assert not off.variables
    np.testing.assert_array_equal(array(off(x, training=True)), x)


def test_a_block_leaves_branches_out():
    x = numbers((200, 5, 8))
    layer = built(Block(Attention(2), MLP(), drop_path=0.5), x)
    untouched = (array(layer(x, training=True)) == x).all((1, 2))
    assert 0.15 < untouched.mean() < 0.35, "both branches dropped, independently"


@pytest.mark.parametrize("attention", (TalkingHeadsAttention, ClassAttention, TokenMixing))
def test_parts_of_a_block(attention):
    block = built(Block(attention(2), MLP(2), layer_scale=0.5))
    x = X[:, : 1 if attention is ClassAttention else 5]
    y, parts = block(X[:, : len(x[0])] if attention is TokenMixing else X, return_parts=True)
    assert set(parts) == {"normalized", "softmax", "maps", "attention_branch", "mlp_branch"}
    if attention is not ClassAttention:
        close(array(y), x + array(parts["attention_branch"]) + array(parts["mlp_branch"]))
    close(array(parts["normalized"]), norm(X, block.norm1))
    assert block.has_maps == (attention is not TokenMixing)
    if block.has_maps:
        _, maps = attend(block.attention, norm(X, block.norm1))
        close(array(parts["maps"]), maps)
        close(array(block(X, return_attention_scores=True)[1]), maps)
    else:
        assert parts["maps"] is None and parts["softmax"] is None


@pytest.mark.parametrize("make", (DistilledHead, DenseHead))
@pytest.mark.parametrize("activation", (None, "softmax"))
def test_parts_of_several_heads(make, activation):
    layer = built(make(5, activation))
    logits = {"head": dense(layer.head, X[:, 0])}
    if make is DistilledHead:
        logits["head_dist"] = dense(layer.head_dist, X[:, 1])
    else:
        logits["aux_head"] = dense(layer.aux_head, X[:, 1:])
    parts = layer(X, return_parts=True)
    assert list(parts) == list(logits) == list(layer.names) == list(layer.loss_weights)
    for name, part in logits.items():
        close(array(parts[name]), softmax(part) if activation else part)
        close(array(layer.parts(X)[name]), part)


@pytest.mark.parametrize("make", (DistilledHead, DenseHead))
def test_heads_run_in_float32(make):
    layer = built(make(5, dtype="mixed_bfloat16"))
    assert {part.dtype_policy.name for part in sublayers(layer)} == {"float32"}
    assert make.from_config(layer.get_config()).dtype_policy.name == "float32"
