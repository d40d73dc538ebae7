import weakref

import keras
import numpy as np
import pytest
from harness import FAMILIES, FAMILIES_HERE, array, blocks, numbers, randomize
from keras import ops

import keras_vitx as kv
from keras_vitx.analysis import attention_scores, class_attention, plot_class_attention, saliency
from keras_vitx.layers import Attention, TokenMixing


def tiny(**changes):
    keras.utils.set_random_seed(0)
    arguments = {
        "dim": 24,
        "depth": 2,
        "num_heads": 4,
        "patch_size": 8,
        "layer_scale": 0.5,
        "input_shape": (32, 48, 3),
        "classes": 5,
    }
    model = kv.CaiT(**{**arguments, **changes})
    # Initial weights give nearly uniform maps.
    model.set_weights([4 * weight for weight in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal((3, 32, 48, 3), dtype="float32")


def test_scores_come_block_by_block(model, images):
    scores = list(attention_scores(model, images))
    assert [(name, maps.shape) for name, maps in scores] == [
        ("blocks_0", (3, 4, 24, 24)),
        ("blocks_1", (3, 4, 24, 24)),
        ("blocks_token_only_0", (3, 4, 1, 25)),
        ("blocks_token_only_1", (3, 4, 1, 25)),
    ]
    assert all(maps.dtype == np.float32 for _, maps in scores)


with_attention = pytest.mark.parametrize("family", [f for f in FAMILIES_HERE if f != "Mixer"])
SMALL = numbers((2, 16, 16, 3))


def small(family):
    """Return a tiny model of a family with maps that are far from uniform."""
    model = FAMILIES[family]()
    for step in model.steps[
        1:
    ]:  # With large patch embeddings, the maps would have no visible effect.
        randomize(step)
    return model


def tokens_of(given):
    """Return the output tokens of a block, given alone or with carried maps."""
    return array(given[0] if isinstance(given, (tuple, list)) else given)


@with_attention
def test_scores_are_those_that_the_forward_pass_used(family, monkeypatch):
    model = small(family)
    scores = dict(attention_scores(model, SMALL))
    assert list(scores) == [block.name for block in blocks(model)]
    x = ops.convert_to_tensor(SMALL)
    for step in model.steps:
        before, x = x, step(x)
        if step.name not in scores:
            continue
        found = scores[step.name]
        assert found.dtype == np.float32
        aggregate = step.attention.aggregate
        for maps, same in ((found, True), (found[..., ::-1].copy(), False)):

            def with_these(_, value, training=False, maps=maps, aggregate=aggregate):
                return aggregate(ops.convert_to_tensor(maps), value, training)

            # With these maps in place of its own, the block returns the same output.
            with monkeypatch.context() as patched:
                patched.setattr(step.attention, "aggregate", with_these)
                given, _ = step(before, return_attention_scores=True)
            expected = tokens_of(x)
            changed = np.abs(tokens_of(given) - expected).max() / np.abs(expected).max()
            assert changed < 1e-5 if same else changed > 1e-3, step.name


def test_maps_of_one_block_at_a_time(monkeypatch):
    model = FAMILIES["ViT"]()
    scores = attention_scores(model, SMALL)
    first = weakref.ref(next(scores)[1])
    second = model.get_layer("blocks_1").attention
    weights_of, alive = second.weights_of, []

    def watched(*given):
        alive.append(first() is not None)
        return weights_of(*given)

    monkeypatch.setattr(second, "weights_of", watched)
    assert first() is not None
    next(scores)
    assert alive == [False]


def test_blocks_without_maps_are_left_out():
    layers = {0: lambda: TokenMixing(4), 1: lambda: Attention(2)}
    model = FAMILIES["ViT"](attention=lambda index: layers[index]())
    assert [name for name, _ in attention_scores(model, SMALL)] == ["blocks_1"]


def test_no_attention():
    model = FAMILIES["Mixer"](name="mine")
    for analysis in (attention_scores, class_attention):
        with pytest.raises(ValueError, match="'mine' has no attention maps"):
            analysis(model, SMALL)


CLASS_ATTENTION = {
    "CaiT": {"blocks_token_only_0": (2, 2)},
    "ViT": {"blocks_0": (2, 2), "blocks_1": (2, 2)},
    "ConViT": {"blocks_2": (2, 2)},
    "DeepViT": {"blocks_0": (2, 2), "blocks_1": (2, 2)},
    "RefinedViT": {f"blocks_{i}": (2, 2) for i in range(3)},
    "CBViT": {"blocks_0": (2, 2), "blocks_1": (2, 2)},
    # The second stage has half as many rows and columns, rounded up.
    "PiT": {
        "transformers_0_blocks_0": (3, 3),
        "transformers_1_blocks_0": (2, 2),
        "transformers_1_blocks_1": (2, 2),
    },
}


@with_attention
def test_class_attention_of_every_family(family):
    model = small(family)
    maps = class_attention(model, SMALL)
    assert {name: part.shape[2:] for name, part in maps.items()} == CLASS_ATTENTION[family]
    scores = dict(attention_scores(model, SMALL))
    for name, part in maps.items():
        rows, columns = part.shape[2:]
        for row in range(rows):
            for column in range(columns):
                expected = scores[name][:, :, 0, 1 + row * columns + column]
                np.testing.assert_array_equal(part[:, :, row, column], expected)


def test_class_attention_beside_a_distillation_token():
    model = FAMILIES["ViT"](distillation_token=True)
    scores = dict(attention_scores(model, SMALL))["blocks_1"]
    assert scores.shape[2:] == (6, 6)
    found = class_attention(model, SMALL)["blocks_1"]
    np.testing.assert_array_equal(found.reshape(2, 2, 4), scores[:, :, 0, 2:])


def test_class_attention_lies_as_the_patches_do(model, images):
    maps = class_attention(model, images)
    assert {name: part.shape for name, part in maps.items()} == {
        "blocks_token_only_0": (3, 4, 4, 6),
        "blocks_token_only_1": (3, 4, 4, 6),
    }
    scores = dict(attention_scores(model, images))["blocks_token_only_0"]
    np.testing.assert_array_equal(
        maps["blocks_token_only_0"][1, 2, 3, 5], scores[1, 2, 0, 1 + 3 * 6 + 5]
    )


def test_a_late_class_token_counts(images):
    maps = class_attention(tiny(class_token_at=1, class_depth=0), images)
    assert {name: part.shape for name, part in maps.items()} == {"blocks_1": (3, 4, 4, 6)}


def test_no_class_token(images):
    model = tiny(class_depth=0, pooling="avg")
    with pytest.raises(ValueError, match="no class token"):
        class_attention(model, images)


def test_only_a_chain_can_be_walked(model, images):
    cut = keras.Model(model.input, model.get_layer("blocks_0").output, name="cut")
    for wrong, received in ((cut, "Functional named 'cut'.*as_chain"), ("CaiT_Mini", "str")):
        for analysis in (attention_scores, class_attention):
            with pytest.raises(ValueError, match=f"must be a model of keras_vitx.*{received}"):
                analysis(wrong, images)
    ((name, maps),) = attention_scores(kv.as_chain(cut), images)
    assert (name, maps.shape) == ("blocks_0", (3, 4, 24, 24))


def test_saliency_spans_0_to_1():
    maps = np.zeros((2, 3, 4, 6), "float32")
    maps[0, :, 1, 2] = 1
    maps[1] = 0.25
    salient = saliency(maps, (32, 48))
    assert salient.shape == (2, 32, 48)
    assert salient[0].min() == 0 and salient[0].max() == 1
    row, column = np.unravel_index(salient[0].argmax(), (32, 48))
    assert (row // 8, column // 8) == (1, 2)
    assert np.isfinite(salient).all()


def test_picture(model, images, tmp_path):
    from PIL import Image

    path = plot_class_attention(model, images, tmp_path / "new" / "maps.png", titles=["a", "b"])
    with Image.open(path) as picture:
        # Three columns: the image and two class blocks; three rows.
        assert picture.size == (600, 660)
        assert np.asarray(picture.convert("L")).std() > 10
    assert [file.name for file in path.parent.iterdir()] == ["maps.png"]
