"""The token layout of a model, and its feature maps: the tokens of the plain walk."""

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, blocks, close, numbers
from keras import ops

import keras_vitx as kv
from keras_vitx.layers import ClassBlock
from keras_vitx.positions import resample

SHAPE = (24, 16, 3)
# The maps are outputs of the same graph, whose layers are tested on each backend.
once = pytest.mark.backend_free


def walk(model, images, wanted, norm):
    """The patches after each wanted block, by calling the layers one by one."""
    maps, x = {}, images
    grids = {tokens.name: tokens.grid for tokens in model.token_layout}
    for step in model.layers:
        x = step(x)
        if step.name in wanted:
            tokens = x[0] if isinstance(x, (list, tuple)) else x
            tokens = model.get_layer("norm")(tokens) if norm else tokens
            rows, columns = grids[step.name]
            patches = tokens[:, -rows * columns :]
            maps[step.name] = ops.reshape(patches, (len(images), rows, columns, -1))
    return [maps[name] for name in wanted]


def compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        close(array(one), array(other))


@once
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_are_the_tokens_of_the_walk(family):
    keras.utils.set_random_seed(0)
    model = FAMILIES[family](input_shape=SHAPE)
    names = [b.name for b in blocks(model) if not isinstance(b, ClassBlock)]
    images = numbers((2, *SHAPE))
    norm = family != "PiT"
    maps, last = kv.features(model, range(len(names)), norm=norm), kv.features(model)
    compare(maps(images), walk(model, images, names, norm))
    compare([last(images)], walk(model, images, names[-1:], True))
    # The same layers, and no head.
    assert {id(v) for v in last.weights} < {id(v) for v in model.weights}


@pytest.mark.parametrize("family", ("PiT", "RefinedViT")[: 2 if BACKEND == "torch" else 1])
def test_a_head_on_a_backbone_trains(family, tmp_path):
    keras.utils.set_random_seed(0)
    base = FAMILIES[family](input_shape=SHAPE)
    backbone = kv.features(base, [0, -1], norm=False)
    images = keras.Input(SHAPE)
    maps = [keras.layers.GlobalAveragePooling2D()(one) for one in backbone(images)]
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()(maps))
    model = keras.Model(images, outputs)

    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = numbers((4, *SHAPE)), np.arange(4) % 3
    before = [array(variable) for variable in base.trainable_variables[:2]]
    model.fit(*data, epochs=2, batch_size=4, verbose=0)
    pairs = zip(base.trainable_variables, before, strict=False)
    assert all((array(variable) != old).any() for variable, old in pairs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(again.predict(data[0], verbose=0), model.predict(data[0], verbose=0))


@once
def test_frozen():
    """No weight changes, and neither dropout nor stochastic depth runs."""
    keras.utils.set_random_seed(0)
    base = FAMILIES["ViT"](input_shape=SHAPE, drop_path=0.5)
    backbone = kv.features(base, trainable=False)
    assert not backbone.trainable_variables
    images = numbers((8, *SHAPE))
    close(array(backbone(images, training=True)), array(backbone(images)))
    again = kv.models.Features.from_config(backbone.get_config())
    again.set_weights(backbone.get_weights())
    assert not again.trainable_variables
    close(array(again(images, training=True)), array(backbone(images)))
    trained = kv.features(FAMILIES["ViT"](input_shape=SHAPE, drop_path=0.5))
    assert np.abs(array(trained(images, training=True)) - array(trained(images))).max() > 1e-3


@once
def test_another_size():
    model = FAMILIES["CaiT"]()
    backbone = kv.features(model, ["blocks_0", "blocks_2"], size=(32, 24))
    images = numbers((2, 32, 24, 3))
    assert [one.shape[1:] for one in backbone.output] == [(4, 3, 8)] * 2
    larger = model.at_size((32, 24))
    compare(backbone(images), walk(larger, images, ["blocks_0", "blocks_2"], True))
    # Positions as DeiT's code resamples them.
    old, new = (
        one.get_layer("pos_embed") for one in (model, model.at_size((32, 24), antialias=False))
    )
    expected = resample(array(old.embeddings.value), old.grid, new.grid, antialias=False)
    np.testing.assert_array_equal(array(new.embeddings.value), expected)


@once
def test_tokens_with_prefix_tokens(tmp_path):
    model = kv.ViT(8, 3, 2, patch_size=8, input_shape=(16, 16, 3), register_tokens=2)
    backbone = kv.features(model, [0, 2], prefix_tokens=True)
    images = numbers((2, 16, 16, 3))
    first, last = map(array, backbone(images))
    assert first.shape == last.shape == (2, 1 + 2 + 4, 8)
    maps = array(kv.features(model, [0, 2])(images)[1])
    close(last[:, 3:].reshape(maps.shape), maps)
    backbone.save(tmp_path / "backbone.keras")
    again = keras.saving.load_model(tmp_path / "backbone.keras")
    close(array(again(images)[1]), last)


# The layout.

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


@once
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


@once
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
