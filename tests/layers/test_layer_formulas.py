"""Each layer against its formula in plain NumPy."""

import keras
import numpy as np
import pytest
from harness import array, close, numbers
from plain import X, attention, built, dense, mix, mlp, norm

from keras_vitx.layers import (
    MLP,
    Attention,
    Block,
    ClassAttention,
    ClassBlock,
    ClassToken,
    DropPath,
    HeadMixing,
    LayerScale,
    PatchEmbedding,
    PositionEmbedding,
    TalkingHeadsAttention,
    TokenPooling,
)
from keras_vitx.layers import ops as layer_ops

ATTENTIONS = {
    "plain": lambda: Attention(2),
    "no_bias": lambda: Attention(4, qkv_bias=False),
    "one_head": lambda: Attention(1),
    "logits": lambda: Attention(2, on_logits=[HeadMixing()]),
    "weights": lambda: Attention(2, on_weights=[HeadMixing(name="a"), HeadMixing(name="b")]),
    "talking": lambda: TalkingHeadsAttention(4),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name):
    layer = built(ATTENTIONS[name]())
    y, maps = layer(X, return_attention_scores=True)
    q, k, v = np.split(dense(X, layer.qkv), 3, axis=-1)
    aggregated, expected_maps = attention(q, k, v, layer)
    close(array(maps), expected_maps)
    close(array(y), dense(aggregated, layer.proj))
    # Without returning maps, the fused kernel may run, with the same result.
    close(array(layer(X)), array(y))
    if not layer.on_weights:
        close(array(maps).sum(-1), np.ones(maps.shape[:-1]))


def test_the_fused_kernel_runs_only_where_it_may(monkeypatch):
    fused = []
    whole = layer_ops.attention
    monkeypatch.setattr(layer_ops, "attention", lambda *given: fused.append(1) or whole(*given))
    built(Attention(2, dropout=0.5))(X)
    assert len(fused) == 1
    built(Attention(2, dropout=0.5))(X, training=True)
    built(Attention(2))(X, return_attention_scores=True)
    built(TalkingHeadsAttention(2))(X)
    assert len(fused) == 1


def test_dropout_of_maps_and_outputs():
    x = numbers((64, 5, 8))
    layer = built(Attention(2, dropout=0.5), x)
    assert np.abs(array(layer(x, training=True)) - array(layer(x))).max() > 0.1
    layer = built(Attention(2, proj_dropout=0.5), x)
    dropped, whole = array(layer(x, training=True)), array(layer(x))
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    close(dropped[kept], 2 * whole[kept])


@pytest.mark.parametrize("class_in_keys", (True, False))
@pytest.mark.parametrize("tokens", (1, 2))
def test_class_attention(tokens, class_in_keys):
    layer = built(
        ClassAttention(
            2, num_class_tokens=tokens, class_in_keys=class_in_keys, on_weights=[HeadMixing()]
        )
    )
    y, maps = layer(X, return_attention_scores=True)
    keys = X if class_in_keys else X[:, tokens:]
    assert maps.shape == (3, 2, tokens, keys.shape[1])
    aggregated, expected_maps = attention(
        dense(X[:, :tokens], layer.q), dense(keys, layer.k), dense(keys, layer.v), layer
    )
    close(array(maps), expected_maps)
    close(array(y), dense(aggregated, layer.proj))
    close(array(layer(X)), array(y))
    plain = built(ClassAttention(2, num_class_tokens=tokens, class_in_keys=class_in_keys))
    close(array(plain(X)), array(plain(X, return_attention_scores=True)[0]))


@pytest.mark.parametrize("make", (Attention, TalkingHeadsAttention, ClassAttention))
def test_heads_that_do_not_divide(make):
    with pytest.raises(ValueError, match=r"num_heads.*num_heads=3, width=8"):
        make(3)(X)


def test_head_mixing():
    maps = numbers((2, 4, 3, 5))
    for use_bias in (True, False):
        layer = built(HeadMixing(use_bias=use_bias), maps)
        assert len(layer.weights) == 1 + use_bias
        close(array(layer(maps)), mix(maps, layer))


def test_names_of_talking_heads():
    paths = {v.path.split("/", 1)[1] for v in built(TalkingHeadsAttention(2)).weights}
    names = {
        f"{part}/{v}" for part in ("qkv", "proj", "proj_l", "proj_w") for v in ("kernel", "bias")
    }
    assert paths == names


def test_mlp():
    layer = built(MLP(2.6))
    assert layer.fc1.units == 20  # int(20.8)
    close(array(layer(X)), mlp(X, layer))
    layer = built(MLP(activation="relu"))
    close(array(layer(X)), dense(np.maximum(dense(X, layer.fc1), 0), layer.fc2))


def test_mlp_drops_hidden_units_and_outputs():
    x = numbers((64, 5, 8))
    layer = built(MLP(dropout=0.5), x)
    assert 0.4 < (array(layer(x, training=True)) == 0).mean() < 0.6


def test_layer_scale():
    gamma = numbers((8,), seed=4)
    layer = LayerScale(0.3)
    layer.build(X.shape)
    close(array(layer(X)), 0.3 * X)
    layer.gamma.assign(gamma)
    close(array(layer(X)), gamma * X)

    layer = LayerScale(0, scalar=True)
    layer.build(X.shape)
    assert layer.gamma.shape == (1,)
    assert np.abs(array(layer(X))).max() == 0
    layer.gamma.assign([2.0])
    close(array(layer(X)), 2 * X)


def test_layer_scale_from_an_initializer():
    start = keras.initializers.RandomUniform(0.0, 2e-5)
    drawn = []
    for _ in range(2):
        layer = LayerScale(start)
        layer.build((None, 400))
        drawn.append(array(layer.gamma.value))
    for gamma in drawn:
        assert 0 <= gamma.min() < 2e-6
        assert 1.8e-5 < gamma.max() <= 2e-5
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-6, "every layer draws its own"


def test_drop_path():
    rate = 0.3
    x = 1 + np.abs(numbers((400, 3, 4)))
    layer = DropPath(rate, seed=0)
    np.testing.assert_array_equal(array(layer(x)), x)
    np.testing.assert_array_equal(array(layer(x, training=False)), x)
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


@pytest.mark.parametrize("rate", (-0.1, 1, 1.5))
def test_drop_path_out_of_range(rate):
    with pytest.raises(ValueError, match=f"rate.*{rate}"):
        DropPath(rate)


@pytest.mark.parametrize("size", ((8, 12, 3), (12, 4, 1)))
def test_patch_embedding(size):
    images = numbers((2, *size))
    layer = built(PatchEmbedding(6, patch_size=4), images)
    rows, columns = size[0] // 4, size[1] // 4
    patches = images.reshape(2, rows, 4, columns, 4, size[2]).transpose(0, 1, 3, 2, 4, 5)
    unfolded = patches.reshape(2, rows * columns, -1)
    kernel = array(layer.proj.kernel.value).reshape(-1, 6)
    close(array(layer(images)), unfolded @ kernel + array(layer.proj.bias.value))


@pytest.mark.parametrize("size", ((8, 10, 3), (9, 8, 3), (None, 8, 3)))
def test_patch_embedding_refuses(size):
    with pytest.raises(ValueError, match="patch_size=4") as error:
        PatchEmbedding(6, patch_size=4).build((None, *size))
    assert str(size) in str(error.value)


def test_position_embedding():
    layer = built(PositionEmbedding((2, 2), num_prefix_tokens=1))
    assert layer.embeddings.shape == (1, 5, 8)
    close(array(layer(X)), X + array(layer.embeddings.value))


def test_class_token():
    layer = built(ClassToken())
    y = array(layer(X))
    assert y.shape == (3, 6, 8)
    np.testing.assert_array_equal(y[:, 1:], X)
    for sample in y:
        np.testing.assert_array_equal(sample[0], array(layer.token.value)[0, 0])


def test_token_pooling():
    np.testing.assert_array_equal(array(TokenPooling()(X)), X[:, 0])
    close(array(TokenPooling("avg")(X)), X[:, 1:].mean(1))
    close(array(TokenPooling("avg", num_prefix_tokens=0)(X)), X.mean(1))
    close(array(TokenPooling("max", num_prefix_tokens=2)(X)), X[:, 2:].max(1))


@pytest.mark.parametrize("layer_scale", (None, 0.5))
def test_block(layer_scale):
    layer = built(Block(TalkingHeadsAttention(2), MLP(2), layer_scale=layer_scale))
    gammas = (
        [1, 1] if layer_scale is None else [array(s.gamma.value) for s in (layer.ls1, layer.ls2)]
    )
    normed = norm(X, layer.norm1)
    q, k, v = np.split(dense(normed, layer.attention.qkv), 3, axis=-1)
    aggregated, expected_maps = attention(q, k, v, layer.attention)
    x = X + gammas[0] * dense(aggregated, layer.attention.proj)
    x = x + gammas[1] * mlp(norm(x, layer.norm2), layer.mlp)
    y, maps = layer(X, return_attention_scores=True)
    close(array(y), x)
    close(array(maps), expected_maps)
    close(array(layer(X)), x)


def test_block_starts_from_its_layer_scale():
    layer = Block(Attention(2), MLP(), layer_scale=1e-5, scalar_scale=True)
    layer.build(X.shape)
    for scale in (layer.ls1, layer.ls2):
        close(array(scale.gamma.value), [1e-5])


def test_block_leaves_branches_out():
    x = numbers((200, 5, 8))
    layer = built(Block(Attention(2), MLP(), drop_path=0.5), x)
    y = array(layer(x, training=True))
    untouched = (y == x).all((1, 2))
    assert 0.15 < untouched.mean() < 0.35, "both branches dropped, independently"


@pytest.mark.parametrize("tokens", (1, 2))
def test_class_block(tokens):
    layer = built(ClassBlock(ClassAttention(2, num_class_tokens=tokens), MLP(2), layer_scale=0.5))
    part = layer.attention
    normed = norm(X, layer.norm1)
    aggregated, expected_maps = attention(
        dense(normed[:, :tokens], part.q), dense(normed, part.k), dense(normed, part.v), part
    )
    x = X[:, :tokens] + array(layer.ls1.gamma.value) * dense(aggregated, part.proj)
    x = x + array(layer.ls2.gamma.value) * mlp(norm(x, layer.norm2), layer.mlp)
    y, maps = layer(X, return_attention_scores=True)
    close(array(y)[:, :tokens], x)
    np.testing.assert_array_equal(array(y)[:, tokens:], X[:, tokens:])
    close(array(maps), expected_maps)


def test_unknown_token_pooling():
    with pytest.raises(ValueError, match="`pooling` must be one of") as error:
        TokenPooling("median")
    assert "'median'" in str(error.value)
