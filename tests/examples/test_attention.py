"""The attention of other papers, in examples/attention: learns, is saved, and is its formula."""

import runpy

import keras
import numpy as np
import pytest
from harness import ROOT, array, close, gradients, numbers, randomize
from keras import ops

EXAMPLES = sorted((ROOT / "examples" / "attention").glob("*.py"))
every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def example():
    loaded = {}

    def load(path):
        if path not in loaded:
            loaded[path] = runpy.run_path(str(path))
        return loaded[path]

    return load


@pytest.mark.backend_free
def test_nine_short_examples():
    assert len(EXAMPLES) == 9
    page = (ROOT / "docs" / "guides" / "nine-attentions.md").read_text()
    assert "<!-- examples: attention -->" in page
    assert all(f"attention/{path.name})" in page for path in EXAMPLES)
    for path in EXAMPLES:
        lines = [line for line in path.read_text().partition('"""\n')[2].splitlines() if line]
        assert len(lines) <= 26, path
        assert "arXiv" in path.read_text() or "Miller" in path.read_text()


@every_example
def test_learns_and_is_saved(example, path, tmp_path):
    model = example(path)["model"]
    images = numbers((2, 32, 32, 3))
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


def attention_of(example, name, grid=(2, 3)):
    """Return the attention of the second block of an example, 96 wide, built for a grid."""
    block = example(ROOT / "examples" / "attention" / f"{name}.py")["model"].get_layer("blocks_1")
    layer = type(block.attention).from_config(block.attention.get_config())
    if hasattr(layer, "set_grid"):
        layer.set_grid(grid, 1)
    return layer


def heads(x, layer):
    """Return queries, keys and values of a layer, `(batch, heads, tokens, size)`."""
    query, key, value = layer.projections(x)
    return (array(each).transpose(0, 2, 1, 3) for each in (query, key, value))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def off_by_one(logits, layer):
    powers = np.exp(logits)
    return powers / (1 + powers.sum(-1, keepdims=True))


def alibi(logits, layer):
    rows, columns = np.divmod(np.arange(6), 3)
    for head in range(4):
        for q in range(6):
            for k in range(6):
                distance = ((rows[q] - rows[k]) ** 2 + (columns[q] - columns[k]) ** 2) ** 0.5
                logits[:, head, 1 + q, 1 + k] -= 4.0 ** -(head + 1) * distance
    return softmax(logits)


def difference(logits, layer):
    maps, scale = softmax(logits), array(layer.on_weights[0].scale)
    return maps[:, ::2] - (0.8 + scale) * maps[:, 1::2]


MAPS = {
    "qk_norm": lambda logits, layer: softmax(logits),
    "gated": lambda logits, layer: softmax(logits),
    "rope_2d": lambda logits, layer: softmax(logits),
    "differential": difference,
    "off_by_one": off_by_one,
    "sigmoid": lambda logits, layer: 1 / (1 + 7 * np.exp(-logits)),
    "alibi_2d": alibi,
}


@pytest.mark.parametrize("name", MAPS)
def test_formula(example, name):
    layer, x = attention_of(example, name), numbers((2, 7, 96))
    layer.build((None, 7, 96))
    randomize(layer, 0.2)
    query, key, value = heads(x, layer)
    logits = query @ key.transpose(0, 1, 3, 2) / query.shape[-1] ** 0.5
    y = MAPS[name](logits, layer) @ value
    y = y.transpose(0, 2, 1, 3).reshape(2, 7, -1)
    if name == "gated":
        y = y / (1 + np.exp(-array(layer.gate(x))))
    close(array(layer(x)), y @ array(layer.proj.kernel) + array(layer.proj.bias))


def test_normalized_queries(example):
    layer = attention_of(example, "qk_norm")
    layer.build((None, 7, 96))
    query, key, _ = heads(numbers((2, 7, 96)), layer)
    for each in (query, key):
        np.testing.assert_allclose(each.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(each.std(-1), 1, rtol=0.1)


def test_rotations_tell_differences_of_places_only(example):
    layer = attention_of(example, "rope_2d", grid=(3, 3))
    layer.build((None, 10, 96))
    same = np.broadcast_to(numbers((1, 1, 96)), (1, 10, 96))
    query, key, _ = heads(same, layer)
    logits = (query @ key.transpose(0, 1, 3, 2))[0, :, 1:, 1:].reshape(-1, 3, 3, 3, 3)
    np.testing.assert_allclose(logits[:, :2, :2, :2, :2], logits[:, 1:, 1:, 1:, 1:], rtol=1e-3)
    assert np.abs(logits[:, 0, 0] - logits[:, 0, 1]).max() > 1e-3


def test_values_of_the_first_block(example):
    model = example(ROOT / "examples" / "attention" / "value_residual.py")["model"]
    blocks = [layer.attention for layer in model.layers if layer.name.startswith("blocks")]
    assert [block.reads_maps for block in blocks] == [False] + 5 * [True]
    layer, x, first = blocks[2], numbers((2, 65, 96)), numbers((2, 65, 4, 24), seed=1)
    y, given = layer((x, first), return_intermediates=True)
    np.testing.assert_array_equal(array(given["shared"]), first)
    layer.mix.assign([1.0, 0.0])
    plain = array(layer((x, first)))
    layer.mix.assign([0.0, 1.0])
    of_first = array(layer((x, first)))
    layer.mix.assign([0.5, 0.5])
    close(array(y), (plain + of_first) / 2)
