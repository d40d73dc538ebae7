"""The attention of other papers, in examples/attention: learns, is saved, and is its formula."""

import functools
import runpy

import keras
import numpy as np
import pytest
from harness import BACKEND, ROOT, array, close, gradients, numbers, randomize, softmax
from keras import ops

import keras_vitx as kv

EXAMPLES = [path.stem for path in sorted((ROOT / "examples" / "attention").glob("*.py"))]
# Elsewhere, those whose formulas are written with the backend's operations.
HERE = EXAMPLES if BACKEND == "torch" else ["differential", "value_residual"]


@functools.cache
def example(name):
    """The network of an example, of three blocks instead of six."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kv.ViT_Mini.data, "depth", 3)
        return runpy.run_path(str(ROOT / "examples" / "attention" / f"{name}.py"))["model"]


@pytest.mark.parametrize("name", HERE)
def test_learns_and_is_saved(name, tmp_path):
    model, images = example(name), numbers((2, 32, 32, 3))
    outputs = array(model(images, training=False))
    np.testing.assert_allclose(outputs.sum(-1), 1, rtol=1e-5)
    head = model.get_layer("head").kernel
    variables = [variable for variable in model.trainable_variables if variable is not head]
    _, found = gradients(lambda: ops.sum(model(images, training=True) ** 2), variables)
    silent = [v.path for v, g in zip(variables, found, strict=True) if not np.abs(g).max()]
    assert all(path.endswith("k/bias") for path in silent)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(array(again(images, training=False)), outputs)
    assert model.at_size((48, 32))(numbers((1, 48, 32, 3))).shape == (1, 10)


def attention_of(name, grid=(2, 3)):
    """Return the attention of the second block of an example, 96 wide, built for a grid."""
    rows, columns = grid
    return example(name).at_size((4 * rows, 4 * columns)).get_layer("blocks_1").attention


def heads(x, layer):
    """Return queries, keys and values of a layer, `(batch, heads, tokens, size)`."""
    query, key, value = layer.projections(x)
    query, key = layer.run_all(layer.on_queries_keys, (query, key))
    return (array(each).transpose(0, 2, 1, 3) for each in (query, key, value))


def plain(logits, layer):
    return softmax(logits)


def alibi(logits, layer):
    places = np.stack(np.divmod(np.arange(6), 3), axis=-1)
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    logits[..., 1:, 1:] -= 4.0 ** -np.arange(1, 5).reshape(4, 1, 1) * distances
    return softmax(logits)


def difference(logits, layer):
    maps, scale = softmax(logits), array(layer.on_weights[0].scale)
    return maps[:, ::2] - (0.8 + scale) * maps[:, 1::2]


MAPS = {
    "qk_norm": plain,
    "rope_2d": plain,
    "differential": difference,
    "alibi_2d": alibi,
}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", MAPS)
def test_formula(name):
    layer, x = attention_of(name), numbers((2, 7, 96))
    randomize(layer, 0.2)
    query, key, value = heads(x, layer)
    logits = query @ key.transpose(0, 1, 3, 2) / query.shape[-1] ** 0.5
    y = MAPS[name](logits, layer) @ value
    y = y.transpose(0, 2, 1, 3).reshape(2, 7, -1)
    close(array(layer(x)), y @ array(layer.proj.kernel) + array(layer.proj.bias))


@pytest.mark.backend_free
def test_queries_and_keys_are_normalized():
    query, key, _ = heads(numbers((2, 7, 96)), attention_of("qk_norm"))
    for each in (query, key):
        np.testing.assert_allclose(each.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(each.std(-1), 1, rtol=0.1)


@pytest.mark.backend_free
def test_rotations_tell_differences_of_places_only():
    same = np.broadcast_to(numbers((1, 1, 96)), (1, 10, 96))
    query, key, _ = heads(same, attention_of("rope_2d", grid=(3, 3)))
    logits = (query @ key.transpose(0, 1, 3, 2))[0, :, 1:, 1:].reshape(-1, 3, 3, 3, 3)
    np.testing.assert_allclose(logits[:, :2, :2, :2, :2], logits[:, 1:, 1:, 1:, 1:], rtol=1e-3)
    assert np.abs(logits[:, 0, 0] - logits[:, 0, 1]).max() > 1e-3


@pytest.mark.backend_free
def test_values_of_the_first_block_are_mixed_in():
    blocks = [layer.attention for layer in example("value_residual").blocks]
    assert [block.reads_maps for block in blocks] == [False] + 2 * [True]
    layer, x, first = blocks[2], numbers((2, 65, 96)), numbers((2, 65, 4, 24), seed=1)
    y, _, given = layer((x, first), return_shared=True)
    np.testing.assert_array_equal(array(given), first)
    ends = []
    for mix in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.5]):
        layer.mix.assign(mix)
        ends.append(array(layer((x, first))))
    close(array(y), ends[2])
    close(ends[2], (ends[0] + ends[1]) / 2)
