"""What the formulas do not say of layers over tokens, heads and blocks: starts, draws, parts."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from plain import X, attend, built, dense, norm, softmax

from keras_vitx import layers as kvl
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import MLP, Attention, Block, DropPath


@pytest.mark.parametrize("make", (Attention, kvl.SharedAttention, kvl.AccumulatingAttention))
def test_dropout_of_maps(make):
    layer, x = make(2, dropout=0.5), X
    if make is not Attention:
        x = X, softmax(numbers((3, 2, 5, 5), seed=4)).astype("float32")
    built(layer, shape=keras.tree.map_structure(np.shape, x))
    y, dropped = (array(layer(x, training=mode)) for mode in (False, True))
    assert np.abs(dropped - y).max() > 0.1 * np.abs(y).max()


@pytest.mark.parametrize("make", (lambda: Attention(2, proj_dropout=0.5), lambda: MLP(dropout=0.5)))
def test_dropout_of_outputs(make):
    x = numbers((64, 5, 8))
    layer = built(make(), x)
    dropped, whole = array(layer(x, training=True)), array(layer(x))
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    if isinstance(layer, Attention):
        close(dropped[kept], 2 * whole[kept])


def test_widths():
    assert built(MLP(2.6)).fc1.units == 20  # int(20.8)
    assert built(MLP(hidden=7, mlp_ratio=2)).fc1.units == 7
    assert built(kvl.TokenMixing(6)).mlp.fc1.units == 6
    assert built(kvl.SqueezeExcitation(ratio=2)).fc1.units == 4
    assert built(kvl.SqueezeExcitation(ratio=16)).fc1.units == 1
    assert built(kvl.ContextBroadcasting()).count_params() == 0
    assert built(kvl.LayerScale(1, scalar=True)).count_params() == 1
    images = numbers((2, 8, 12, 3))
    one, other = (built(kvl.PatchEmbedding(6, 4, stride), images) for stride in (4, None))
    np.testing.assert_array_equal(array(one(images)), array(other(images)))


@pytest.mark.parametrize(
    ("make", "name"),
    (
        (kvl.LayerScale, "gamma"),
        (lambda start: kvl.ContextBroadcasting(scale=start), "scaling"),
        (lambda start: Block(Attention(2), MLP(1), start, True).ls2, "gamma"),
        (lambda start: kvl.Temperature(start, learnable=True), "tau"),
    ),
    ids=("LayerScale", "ContextBroadcasting", "Block", "Temperature"),
)
def test_starts_from_a_number_or_an_initializer(make, name):
    def start(value):
        layer = make(value)
        layer.build((None, 5, 400))
        return array(getattr(layer, name).value)

    close(start(0.3), np.full(start(0.3).shape, 0.3))
    if len(start(0.3)) == 400:
        one, other = (start(keras.initializers.RandomUniform(0.0, 2e-5, seed=s)) for s in (1, 2))
        assert 0 <= one.min() < 2e-6
        assert 1.8e-5 < one.max() <= 2e-5
        assert np.abs(one - other).max() > 1e-6


def test_drop_path():
    rate, x = 0.3, 1 + np.abs(numbers((400, 3, 4)))
    layer, fractions = DropPath(rate, seed=0), set()
    np.testing.assert_array_equal(array(layer(x)), x)
    for _ in range(10):
        y = array(layer(x, training=True))
        kept = y[:, 0, 0] != 0
        close(y[kept], x[kept] / (1 - rate))
        assert not y[~kept].any()
        fractions.add(kept.mean())
    assert abs(np.mean([*fractions]) - (1 - rate)) < 0.03  # four standard deviations
    assert len(fractions) > 1, "each call draws anew"
    off = DropPath(0.0)
    assert not off.variables
    np.testing.assert_array_equal(array(off(x, training=True)), x)


def test_a_block_leaves_branches_out():
    x = numbers((200, 5, 8))
    layer = built(Block(Attention(2), MLP(), drop_path=0.5), x)
    untouched = (array(layer(x, training=True)) == x).all((1, 2))
    assert 0.15 < untouched.mean() < 0.35, "both branches dropped, independently"


@pytest.mark.parametrize(
    "attention", (kvl.TalkingHeadsAttention, kvl.ClassAttention, kvl.TokenMixing)
)
def test_intermediates_of_a_block(attention):
    block = built(Block(attention(2), MLP(2), layer_scale=0.5))
    y, found = block(X, return_intermediates=True)
    assert set(found) == {"normalized", "softmax", "maps", "attention_branch", "mlp_branch"}
    if attention is not kvl.ClassAttention:
        close(array(y), X + array(found["attention_branch"]) + array(found["mlp_branch"]))
    close(array(found["normalized"]), norm(X, block.norm1))
    assert block.has_maps == (attention is not kvl.TokenMixing)
    if block.has_maps:
        _, maps = attend(block.attention, norm(X, block.norm1))
        close(array(found["maps"]), maps)
        close(array(block(X, return_attention_scores=True)[1]), maps)
    else:
        assert found["maps"] is None and found["softmax"] is None


@pytest.mark.parametrize("make", (kvl.DistilledHead, kvl.DenseHead))
@pytest.mark.parametrize("activation", (None, "softmax"))
def test_logits_of_multi_head(make, activation):
    """In float32, in every precision."""
    layer = built(make(5, activation, dtype="mixed_bfloat16"))
    assert {part.dtype_policy.name for part in sublayers(layer)} == {"float32"}
    logits = {"head": dense(layer.head, X[:, 0])}
    if make is kvl.DistilledHead:
        logits["head_dist"] = dense(layer.head_dist, X[:, 1])
    else:
        logits["aux_head"] = dense(layer.aux_head, X[:, 1:])
    parts = layer(X, by_head=True)
    assert list(parts) == list(logits) == list(layer.names) == list(layer.loss_weights)
    for name, part in logits.items():
        close(array(parts[name]), softmax(part) if activation else part)
        close(array(layer.logits_by_head(X)[name]), part)


@pytest.mark.parametrize("parent", (Attention, kvl.GatedPositionalAttention))
@pytest.mark.parametrize("step", ("logits_of", "softmax_of", "weights_of", "maps_of", "aggregate"))
def test_fused_attention_does_not_bypass_a_step_of_a_subclass(parent, step):
    def doubled(self, *arguments, **options):
        return 2 * getattr(parent, step)(self, *arguments, **options)

    x = numbers((3, 4, 8))
    mine = type("Mine", (parent,), {step: doubled})
    inherited, changed = built(parent(4), x), built(mine(4), x)
    changed.set_weights(inherited.get_weights())
    alone = array(changed(x))
    close(alone, array(changed(x, return_attention_scores=True)[0]))
    assert np.abs(alone - array(inherited(x))).max() > 1e-3
