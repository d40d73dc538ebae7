import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, blocks, close, numbers, precision, randomized
from keras import ops

from keras_vitx.analysis import class_attention, measure, trace
from keras_vitx.layers import Attention, ClassBlock, TokenMixing, record
from keras_vitx.layers.recording import recording

IMAGES = numbers((2, 16, 16, 3))
HERE = ("CaiT", "ConViT", "RefinedViT")  # Compiled anew elsewhere; what is recorded is the same.


@pytest.fixture(scope="module", params=FAMILIES if BACKEND == "torch" else HERE)
def passed(request):
    """A model, its trace, and the input and the output of each block in a plain pass."""
    model, x, ends = randomized(request.param), ops.convert_to_tensor(IMAGES), []
    for step in model.layers:
        before, x = x, step(x)
        if step in blocks(model):
            ends.append((step, before, x))
    traced = list(trace(model, IMAGES))
    return SimpleNamespace(family=request.param, model=model, traced=traced, ends=ends)


def first_of(tensors):
    """The tokens, alone or with shared maps."""
    return array(keras.tree.flatten(tensors)[0])


def test_blocks_of_every_family(passed):
    assert [one.index for one in passed.traced] == list(range(len(passed.traced)))
    for one, (step, before, x) in zip(passed.traced, passed.ends, strict=True):
        assert one.name == step.name
        tokens, outputs = first_of(before), first_of(x)
        # The fused attention of the plain pass rounds differently.
        close(one.inputs, tokens)
        close(one.outputs, outputs)
        assert one.grid == (2, 2) or passed.family == "PiT"

        # The branches, as added, make the output.
        updated = one.attention_branch.shape[1]
        assert updated == (1 if isinstance(step, ClassBlock) else tokens.shape[1])
        close(one.mlp_input + one.mlp_branch, outputs[:, :updated])
        if step.residual_scale == 1 and step.ls2.gamma is None:
            normed = step.norm2(ops.convert_to_tensor(one.mlp_input))
            close(one.mlp_branch, array(step.mlp(normed)))
        if passed.family == "Mixer":
            assert one.softmax is one.maps is one.shared is one.before is None
            continue
        if one.softmax is not None:
            assert np.abs(one.softmax.sum(-1) - 1).max() < 1e-5
            assert one.before is one.softmax


def test_maps_are_those_that_the_forward_pass_used(passed, monkeypatch):
    for one, (step, before, x) in zip(passed.traced, passed.ends, strict=True):
        if passed.family == "Mixer":
            continue
        aggregate = step.attention.aggregate
        for maps, same in ((one.maps, True), (one.maps[..., ::-1].copy(), False)):

            def with_these(_, value, training=False, maps=maps, aggregate=aggregate):
                return aggregate(ops.convert_to_tensor(maps), value, training)

            # With these maps in place of its own, the block returns the same output.
            with monkeypatch.context() as patched:
                patched.setattr(step.attention, "aggregate", with_these)
                with recording():
                    given = first_of(step(before))
            expected = first_of(x)
            changed = np.abs(given - expected).max() / np.abs(expected).max()
            assert changed < 1e-5 if same else changed > 1e-3, step.name


def test_class_attention_of_every_family(passed):
    if passed.family == "Mixer":
        return
    found = class_attention(passed.model, IMAGES)
    # The class token enters with the last block of CaiT and of ConViT.
    late = passed.family in ("CaiT", "ConViT")
    assert list(found) == [one.name for one in (passed.traced[-1:] if late else passed.traced)]
    for one in passed.traced[-len(found) :]:
        maps = found[one.name]
        for row, column in np.ndindex(*one.grid):
            key = row * maps.shape[3] + column - one.num_patches
            np.testing.assert_array_equal(maps[:, :, row, column], one.maps[:, :, 0, key])


def test_shared_maps():
    first, shared, adding = trace(randomized("RefinedViT"), IMAGES)
    assert first.softmax is first.maps and first.shared is None
    assert shared.softmax is None
    np.testing.assert_array_equal(shared.shared, first.maps)
    assert shared.before is shared.shared
    assert np.abs(shared.maps - shared.shared).max() > 1e-2
    # The third block adds the maps of the first, which the second passes on unrefined.
    np.testing.assert_array_equal(adding.shared, first.maps)
    close(adding.maps, adding.softmax + adding.shared * 4**-0.5)


class Stranger(keras.layers.Layer):
    """Attention that shares nothing with `Attention`: each token attends the next one."""

    def call(self, x):
        maps = ops.roll(ops.eye(x.shape[1]), 1, axis=1)
        record("maps", ops.broadcast_to(maps, (ops.shape(x)[0], 1, *maps.shape)))
        return ops.roll(x, -1, axis=1)


class OwnSoftmax(Attention):
    fused = None

    def softmax_maps(self, query, key, training=False, mask=None):
        return ops.flip(super().softmax_maps(query, key, training, mask), axis=-1)


def test_a_users_own_attention():
    layers = [Stranger, lambda: OwnSoftmax(2), lambda: TokenMixing(4)]
    model = FAMILIES["ViT"](attention=lambda index: layers[index](), depth=3)
    stranger, own, mixing = trace(model, IMAGES)
    assert stranger.maps.shape == (2, 1, 5, 5)
    assert own.softmax is own.maps
    assert mixing.maps is mixing.softmax is None
    assert mixing.attention_branch.shape == (2, 5, 8)
    # It has no values, and the last one no maps.
    found = measure(model, IMAGES)
    assert [list(found[name]) for name in ("sink_share", "effective_rank")] == [
        ["blocks_0", "blocks_1"],
        ["blocks_1"],
    ]


@pytest.mark.backend_free
def test_half_precision_gives_float32():
    with precision("mixed_bfloat16"):
        model = FAMILIES["DeepViT"]()
    one = next(trace(model, IMAGES))
    for values in (one.softmax, one.maps, one.inputs, one.outputs, one.mlp_branch):
        assert values.dtype == np.float32


@pytest.mark.backend_free
def test_one_block_at_a_time():
    walk = trace(FAMILIES["DeepViT"](), IMAGES)
    first = next(walk)
    kept = [weakref.ref(part) for part in (first.softmax, first.maps, first.attention_branch)]
    del first
    next(walk)
    assert [one() for one in kept] == [None] * 3


@pytest.mark.backend_free
def test_where_the_class_token_looks():
    """Beside a distillation token, and on a wide grid with a class token that enters late."""
    model = FAMILIES["ViT"](distillation_token=True)
    (one,) = trace(model, IMAGES, ["blocks_1"])
    found = class_attention(model, IMAGES)["blocks_1"]
    np.testing.assert_array_equal(found.reshape(2, 2, 4), one.maps[:, :, 0, 2:])
    late = FAMILIES["CaiT"](class_token_at=1, class_depth=0, input_shape=(32, 48, 3), depth=2)
    (maps,) = class_attention(late, numbers((1, 32, 48, 3))).items()
    assert maps[0] == "blocks_1" and maps[1].shape[2:] == (4, 6)
