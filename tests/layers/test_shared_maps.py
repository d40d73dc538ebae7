"""Maps that blocks share, and their similarity."""

import numpy as np
import pytest
from harness import array, close, gradients, numbers
from keras import ops
from plain import X, attend, built, norm, plain, softmax

from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    CarryingBlock,
    DeepAttention,
    HeadMixing,
    SharedAttention,
    TalkingHeadsAttention,
    UniformHeads,
)
from keras_vitx.layers.deepvit import map_similarity

SHARED = softmax(numbers((3, 2, 5, 5), seed=4)).astype("float32")
PAIR = (X.shape, SHARED.shape)


def test_dropout_of_shared_maps():
    for make in (SharedAttention, AccumulatingAttention):
        layer = built(make(2, dropout=0.5), shape=PAIR)
        y, dropped = (array(layer((X, SHARED), training=mode)) for mode in (False, True))
        assert np.abs(dropped - y).max() > 0.1 * np.abs(y).max()


ATTENTIONS = {
    "shared": lambda: SharedAttention(2, on_weights=[HeadMixing()]),
    "accumulating": lambda: AccumulatingAttention(2),
    "plain": lambda: Attention(2),
}


@pytest.mark.parametrize("gives_maps", (False, True))
@pytest.mark.parametrize("name", ATTENTIONS)
def test_carrying_block(name, gives_maps):
    block = built(CarryingBlock(ATTENTIONS[name](), MLP(2), gives_maps=gives_maps), shape=PAIR)
    read = norm(X, block.norm1)
    _, used = attend(block.attention, (read, SHARED) if name != "plain" else read)
    expected = plain(block, (X, SHARED))
    y, maps = block((X, SHARED), return_attention_scores=True)
    close(array(maps), used)
    for outputs in (y, block((X, SHARED))):
        if gives_maps:
            close(array(outputs[0]), expected[0])
            # Shared maps are passed on as received, computed ones as used.
            close(array(outputs[1]), SHARED if name == "shared" else used)
        else:
            close(array(outputs), expected)


def test_a_block_that_shares_nothing_is_a_block():
    carrying = CarryingBlock(
        TalkingHeadsAttention(2), MLP(), takes_maps=False, gives_maps=False, residual_scale=0.5
    )
    plain = built(Block(TalkingHeadsAttention(2), MLP(), residual_scale=0.5))
    built(carrying).set_weights(plain.get_weights())
    np.testing.assert_array_equal(array(carrying(X)), array(plain(X)))


def test_maps_of_appended_heads_are_passed_on():
    attention = Attention(2, on_weights=[UniformHeads(2)])
    block = built(CarryingBlock(attention, MLP(), takes_maps=False))
    assert block(X)[1].shape == block.compute_output_spec(X)[1].shape == (3, 4, 5, 5)


def cosine(maps, others, over):
    """Mean cosine between the maps of two blocks, over vectors."""
    axis = {"heads": 1, "queries": 2}[over]
    vectors = [np.moveaxis(part, axis, -1).reshape(-1, part.shape[axis]) for part in (maps, others)]
    norms = [np.linalg.norm(part, axis=1) for part in vectors]
    return np.mean((vectors[0] * vectors[1]).sum(1) / norms[0] / norms[1])


@pytest.mark.parametrize("over", ("heads", "queries"))
def test_map_similarity(over):
    maps, others = (softmax(numbers((2, 4, 5, 7), seed, scale=3)) for seed in (1, 2))
    # Small entries count as much as large ones; most entries of a long row are small.
    maps[:, :, :2], others[:, :, :, :3] = 1e-4 * maps[:, :, :2], 1e-3 * others[:, :, :, :3]
    given = (ops.convert_to_tensor(each.astype("float32")) for each in (maps, others))
    close(array(map_similarity(*given, over)), cosine(maps, others, over))


@pytest.mark.parametrize("gives_maps", (False, True))
@pytest.mark.parametrize("over", ("heads", "queries"))
def test_similarity_in_the_loss(gives_maps, over):
    """DeepViT, Appendix A, Equation 6."""
    block = CarryingBlock(
        Attention(2), MLP(), similarity=0.3, similarity_over=over, gives_maps=gives_maps
    )
    built(block, shape=PAIR)
    block((X, SHARED))
    assert block.losses == []
    block((X, SHARED), training=True)
    (loss,) = block.losses
    _, maps = attend(block.attention, norm(X, block.norm1))
    close(array(loss), 0.3 * cosine(maps, SHARED, over))


def test_similarity_of_a_map_with_itself_is_one():
    block = CarryingBlock(SharedAttention(2), MLP(), similarity=1.0)
    built(block, shape=PAIR)((X, SHARED), training=True)
    close(array(block.losses[0]), 1.0)


@pytest.mark.parametrize("over", ("heads", "queries"))
def test_similarity_trains_the_attention(over):
    layer = built(DeepAttention(2))
    shared = ops.convert_to_tensor(SHARED)

    def loss():
        _, maps = layer(ops.convert_to_tensor(X), return_attention_scores=True)
        return map_similarity(maps, shared, over)

    _, (found, *_) = gradients(loss, [layer.qkv.kernel])
    assert np.isfinite(found).all()
    assert np.abs(found[:, :16]).max() > 1e-4, "queries and keys"
    assert np.abs(found[:, 16:]).max() == 0, "values are not in the maps"
