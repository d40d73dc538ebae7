"""What a recipe changes in a network that is built already."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, MIXED, array, blocks, close, numbers

from keras_vitx.keras_internals import sublayers
from keras_vitx.training import Recipe, apply_settings, set_precision

REFINED = "RefinedViT", "mixed_float16"
IMAGES = numbers((8, 16, 16, 3))


def layers_in(model):
    return model.get_config()["layers"]


def of_blocks(model, name):
    return [getattr(block, name, 0) for block in blocks(model)]


@pytest.mark.backend_free
@pytest.mark.parametrize("family", FAMILIES)
def test_as_if_built_with_that_rate(family):
    built, changed = (FAMILIES[family](drop_path=rate, name="model") for rate in (0.4, 0.0))
    plain = layers_in(changed)
    changed.set_drop_path(0.4, "constant" if family == "CaiT" else "linear")
    assert max(of_blocks(changed, "drop_path")) == 0.4
    assert layers_in(changed) == layers_in(built)
    assert len(changed.non_trainable_variables) == len(built.non_trainable_variables)
    built.set_drop_path(0.0)
    assert layers_in(built) == plain
    assert not any(block.drop_path1.seed_generator for block in blocks(built))
    if family == "CaiT":  # Class attention is never dropped.
        model = FAMILIES[family](class_depth=2)
        model.set_drop_path(0.3, "constant")
        assert of_blocks(model, "drop_path") == [0.3] * (len(blocks(model)) - 2) + [0.0] * 2


@pytest.mark.backend_free
def test_settings_of_a_recipe():
    model = FAMILIES["RefinedViT"]()
    before = model.get_config()
    apply_settings(model, Recipe("mine"))
    assert model.get_config() == before
    recipe = Recipe("mine", remat=True, crop_ratio=1.25)
    apply_settings(model, recipe)
    inside = keras.Sequential([keras.Input((16, 16, 3)), model])
    apply_settings(inside, Recipe("mine", drop_path=0.2, drop_path_schedule="constant"))
    assert of_blocks(model, "drop_path") == [0.2] * len(blocks(model))
    assert model.remat
    assert model.preprocessing.crop_ratio == 1.25


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "family, policy", [*((name, MIXED[0]) for name in ("CaiT", "ConViT", "PiT")), REFINED]
)
def test_the_precision_of_a_built_model(family, policy):
    model = FAMILIES[family](classifier_activation=None)
    exact = array(model(IMAGES))
    set_precision(model, policy)
    head, body = model.layers[-1], model.layers[:-1]
    assert {part.dtype_policy.name for part in sublayers(head)} == {"float32"}
    assert {part.dtype_policy.name for step in body for part in sublayers(step)} == {policy}
    assert all(variable.dtype == "float32" for variable in model.trainable_variables)
    y = model(IMAGES)
    assert keras.backend.standardize_dtype(y.dtype) == "float32"
    assert np.abs(array(y) - exact).max() > 0, "it computes in half precision"
    close(array(y), exact, 0.05)
    for part in keras.tree.flatten(keras.Model(model.input, blocks(model)[1].output)(IMAGES)):
        assert keras.backend.standardize_dtype(part.dtype) == policy.removeprefix("mixed_")
    set_precision(model, "float32")
    assert {part.dtype_policy.name for part in sublayers(model)} == {"float32"}
    np.testing.assert_array_equal(array(model(IMAGES)), exact)


@pytest.mark.backend_free
def test_the_precision_of_a_quantized_model():
    model = FAMILIES["ViT"]()
    model.quantize("int8")
    exact = array(model(IMAGES))
    set_precision(model, "mixed_bfloat16")
    close(array(model(IMAGES)), exact, 0.05)
    set_precision(model, "float32")
    with pytest.raises(ValueError, match="float16"):  # Keras has no such policy.
        set_precision(model, "mixed_float16")
    np.testing.assert_array_equal(array(model(IMAGES)), exact)
