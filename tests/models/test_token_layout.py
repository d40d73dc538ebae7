"""The token layout of a model, for heads built on its tokens."""

import keras
import pytest
from harness import BACKEND, FAMILIES, array, blocks, close, numbers

import keras_vitx as kv

# The grids and the numbers of leading tokens, after each layer from the stem to the norm.
SQUARE, PIT = [(2, 2)], [0, 0, *[1] * 6]
LAYOUTS = {
    "CaiT": ({}, SQUARE * 8, [0] * 5 + [1] * 3),
    "CaiT/distilled": ({"distillation_token": True}, SQUARE * 9, [0] * 5 + [1, 2, 2, 2]),
    "ViT": ({}, SQUARE * 6, [0, *[1] * 5]),
    "ConViT": ({}, SQUARE * 7, [0] * 4 + [1] * 3),
    "DeepViT": ({"conv_stem": True}, SQUARE * 6, [0, *[1] * 5]),
    "RefinedViT": ({}, SQUARE * 7, [0, *[1] * 6]),
    "CBViT": ({}, SQUARE * 6, [0, *[1] * 5]),
    "PiT": ({}, [(3, 3)] * 4 + SQUARE * 4, PIT),
    "Mixer": ({}, SQUARE * 4, [0] * 4),
    "PiT/wide": ({"input_shape": (32, 21, 3)}, [(6, 4)] * 4 + [(3, 2)] * 4, PIT),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("case", {**dict.fromkeys(FAMILIES), **LAYOUTS})
@pytest.mark.parametrize("include_top", (True, False))
def test_layout(case, include_top):
    arguments, grids, prefixes = LAYOUTS.get(case, ({}, None, None))
    model = FAMILIES[case.split("/")[0]](include_top=include_top, **arguments)
    layout = model.token_layout
    assert layout[-1].name == "norm"
    assert [tokens.name for tokens in layout] == [step.name for step in model.layers[: len(layout)]]
    assert grids in (None, [tokens.grid for tokens in layout])
    assert prefixes in (None, [tokens.num_prefix_tokens for tokens in layout])
    assert model.grid == layout[-1].grid
    pairs = [tokens.name for tokens in layout if tokens.emits_maps]
    assert pairs == [block.name for block in blocks(model) if getattr(block, "emits_maps", False)]
    assert pairs or not case.startswith("RefinedViT")


@pytest.mark.backend_free
def test_a_stem_that_says_nothing():
    layers = [keras.layers.Reshape((4, 12), name="stem"), keras.layers.Dense(3, name="last")]
    model = kv.models.Chain(layers, (4, 4, 3))
    assert model.token_layout == [("stem", None, None, False), ("last", None, None, False)]


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's switches")
def test_the_argument_training_decides():
    model = FAMILIES["ViT"](drop_path=[0.5, 0.5])
    images = numbers((16, 16, 16, 3))
    expected = array(model(images, training=False))
    for switch in (model.train, model.eval):
        switch()
        close(array(model(images)), expected)
        assert abs(array(model(images, training=True)) - expected).max() > 1e-4
