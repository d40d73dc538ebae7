import keras
import numpy as np
import pytest
from keras import ops

import keras_vitx as kv
from keras_vitx.analysis import attention_scores, class_attention, plot_class_attention, saliency


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
    # Weights as they start give nearly uniform maps.
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


def test_scores_are_those_that_the_forward_pass_used(model, images):
    scores = dict(attention_scores(model, images))
    for name in ("blocks_1", "blocks_token_only_1"):
        block = model.get_layer(name)
        before = keras.Model(model.input, block.input)(images)
        normed = block.norm1(before)
        attention = block.attention
        if name == "blocks_1":
            value = ops.split(attention.qkv(normed), 3, axis=-1)[2]
        else:
            value = attention.v(normed)
        value = ops.transpose(attention.split_heads(value), (0, 2, 1, 3))
        y = ops.transpose(ops.matmul(scores[name], value), (0, 2, 1, 3))
        expected = attention.proj(ops.reshape(y, (3, -1, 24)))
        np.testing.assert_allclose(
            ops.convert_to_numpy(attention(normed)), ops.convert_to_numpy(expected), atol=1e-5
        )


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
    cut = keras.Model(model.input, model.get_layer("blocks_0").output)
    with pytest.raises(ValueError, match="`model` must be a model of keras_vitx"):
        next(attention_scores(cut, images))


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
