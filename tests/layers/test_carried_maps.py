"""Carried maps."""

import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import ops
from plain import X, aggregate, batch_norm, built, dense, logits, mix, mlp, norm, softmax

from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    CarryingBlock,
    DeepAttention,
    HeadMixing,
    ReAttention,
    SharedAttention,
    TalkingHeadsAttention,
    UniformHeads,
)
from keras_vitx.layers.deepvit import map_similarity

CARRIED = softmax(numbers((3, 2, 5, 5), seed=4))
PAIR = (X.shape, CARRIED.shape)


def shared(x, layer):
    """(output, maps) of SharedAttention with HeadMixing."""
    maps = CARRIED
    for part in layer.on_weights:
        maps = mix(maps, part)
    return dense(aggregate(maps, dense(x, layer.v)), layer.proj), maps


def accumulated(x, layer):
    """(output, maps) of AccumulatingAttention, two heads of size 4."""
    query, key, value = np.split(dense(x, layer.qkv), 3, axis=-1)
    maps = logits(query, key, 2)
    for part in layer.on_logits:
        maps = mix(maps, part)
    maps = softmax(maps)
    for part in layer.on_weights:
        maps = mix(maps, part)
    maps = maps + CARRIED / 2  # sqrt(4)
    return dense(aggregate(maps, value), layer.proj), maps


def own(x, layer):
    query, key, value = np.split(dense(x, layer.qkv), 3, axis=-1)
    maps = softmax(logits(query, key, 2))
    return dense(aggregate(maps, value), layer.proj), maps


@pytest.mark.parametrize("on_weights", (False, True))
def test_shared_attention(on_weights):
    layer = built(SharedAttention(2, on_weights=[HeadMixing(name="mix")] * on_weights), shape=PAIR)
    expected, expected_maps = shared(X, layer)
    y, maps = layer((X, CARRIED), return_attention_scores=True)
    close(array(maps), expected_maps)
    close(array(y), expected)
    close(array(layer((X, CARRIED))), expected)
    assert {v.path.split("/")[-2] for v in layer.weights} == {"v", "proj"} | {
        part.name for part in layer.on_weights
    }


@pytest.mark.parametrize("training", (False, True))
def test_reused_attention(training):
    """DeepViT, Appendix A, Equation 5."""
    layer = built(SharedAttention(2, on_weights=[ReAttention()]), shape=PAIR)
    part = layer.on_weights[0]
    maps = batch_norm(mix(CARRIED, part.reatten_matrix), part.var_norm, training)
    expected = dense(aggregate(maps, dense(X, layer.v)), layer.proj)
    close(array(layer((X, CARRIED), training=training)), expected)


@pytest.mark.parametrize("talking", (False, True))
def test_accumulating_attention(talking):
    layer = AccumulatingAttention(
        2, on_logits=[HeadMixing()] * talking, on_weights=[HeadMixing()] * talking
    )
    built(layer, shape=PAIR)
    expected, expected_maps = accumulated(X, layer)
    y, maps = layer((X, CARRIED), return_attention_scores=True)
    close(array(maps), expected_maps)
    close(array(y), expected)
    close(array(layer((X, CARRIED))), expected)


def test_dropout_of_carried_maps():
    for make in (SharedAttention, AccumulatingAttention):
        layer = built(make(2, dropout=0.5), shape=PAIR)
        y, dropped = (array(layer((X, CARRIED), training=mode)) for mode in (False, True))
        assert np.abs(dropped - y).max() > 0.1 * np.abs(y).max()


def after(x, attended, block):
    """Both residual branches of a block."""
    x = x + attended
    return x + mlp(norm(x, block.norm2), block.mlp)


ATTENTIONS = {
    "shared": (lambda: SharedAttention(2, on_weights=[HeadMixing()]), shared),
    "accumulating": (lambda: AccumulatingAttention(2), accumulated),
    "plain": (lambda: Attention(2), own),
}


@pytest.mark.parametrize("gives_maps", (False, True))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_carrying_block(name, gives_maps):
    make, plain = ATTENTIONS[name]
    block = built(CarryingBlock(make(), MLP(2), gives_maps=gives_maps), shape=PAIR)
    attended, used = plain(norm(X, block.norm1), block.attention)
    expected = after(X, attended, block)
    # Shared maps are carried on as received, computed ones as used.
    handed_on = CARRIED if name == "shared" else used

    for scores in (False, True):
        given = block((X, CARRIED), return_attention_scores=scores)
        if scores:
            given, maps = given
            close(array(maps), used)
        y = given
        if gives_maps:
            y, maps = given
            close(array(maps), handed_on)
        close(array(y), expected)


def test_the_first_block_takes_tokens():
    block = built(CarryingBlock(Attention(2), MLP(2), takes_maps=False))
    attended, used = own(norm(X, block.norm1), block.attention)
    y, maps = block(X)
    close(array(y), after(X, attended, block))
    close(array(maps), used)
    for part, shape in zip(block.compute_output_spec(X), (X.shape, CARRIED.shape), strict=True):
        assert part.shape == shape


def test_a_block_that_carries_nothing_is_a_block():
    carrying = CarryingBlock(
        TalkingHeadsAttention(2), MLP(), takes_maps=False, gives_maps=False, residual_scale=0.5
    )
    plain = built(Block(TalkingHeadsAttention(2), MLP(), residual_scale=0.5))
    built(carrying).set_weights(plain.get_weights())
    np.testing.assert_array_equal(array(carrying(X)), array(plain(X)))


def test_maps_of_appended_heads_are_handed_on():
    block = built(
        CarryingBlock(Attention(2, on_weights=[UniformHeads(2)]), MLP(), takes_maps=False)
    )
    _, maps = block(X)
    assert maps.shape == block.compute_output_spec(X)[1].shape == (3, 4, 5, 5)


def cosine(maps, others, over):
    """Mean cosine between the maps of two blocks, over vectors."""
    axis = {"heads": 1, "queries": 2}[over]
    vectors = [np.moveaxis(part, axis, -1).reshape(-1, part.shape[axis]) for part in (maps, others)]
    cosines = [
        a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in zip(*vectors, strict=True)
    ]
    return np.mean(cosines)


@pytest.mark.parametrize("over", ("heads", "queries"))
def test_map_similarity(over):
    maps, others = (softmax(numbers((2, 4, 5, 7), seed, scale=3)) for seed in (1, 2))
    # Small entries count as much as large ones; most entries of a long row are small.
    maps[:, :, :2], others[:, :, :, :3] = 1e-4 * maps[:, :, :2], 1e-3 * others[:, :, :, :3]
    found = array(map_similarity(*map(ops.convert_to_tensor, (maps, others)), over))
    close(found, cosine(maps, others, over))


@pytest.mark.parametrize("gives_maps", (False, True))
def test_similarity(gives_maps):
    """DeepViT, Appendix A, Equation 6."""
    for over in ("heads", "queries"):
        block = CarryingBlock(
            Attention(2), MLP(), similarity=0.3, similarity_over=over, gives_maps=gives_maps
        )
        built(block, shape=PAIR)
        block((X, CARRIED))
        assert block.losses == []
        block((X, CARRIED), training=True)
        (loss,) = block.losses
        _, maps = own(norm(X, block.norm1), block.attention)
        close(array(loss), 0.3 * cosine(maps, CARRIED, over))


def test_similarity_of_a_map_with_itself_is_one():
    block = CarryingBlock(SharedAttention(2), MLP(), similarity=1.0)
    built(block, shape=PAIR)((X, CARRIED), training=True)
    close(array(block.losses[0]), 1.0)


@pytest.mark.parametrize("over", ("heads", "queries"))
def test_similarity_trains_the_attention(over):
    layer = built(DeepAttention(2))
    carried = ops.convert_to_tensor(CARRIED)

    def loss():
        _, maps = layer(ops.convert_to_tensor(X), return_attention_scores=True)
        return map_similarity(maps, carried, over)

    _, (found, *_) = gradients(loss, [layer.qkv.kernel])
    assert np.isfinite(found).all()
    assert np.abs(found[:, :16]).max() > 1e-4, "queries and keys"
    assert np.abs(found[:, 16:]).max() == 0, "values are not in the maps"
