import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, FAMILIES_HERE, MIXED, array, blocks, close, numbers

from keras_vitx.keras_internals import sublayers
from keras_vitx.training import set_precision

IMAGES = numbers((2, 16, 16, 3))


@pytest.mark.parametrize("family", FAMILIES_HERE)
@pytest.mark.parametrize("policy", MIXED if BACKEND == "torch" else ("mixed_float16",))
def test_a_standing_model(family, policy):
    model = FAMILIES[family](classifier_activation=None)
    exact = array(model(IMAGES))
    set_precision(model, policy)
    head, body = model.layers[-1], model.steps[:-1]
    assert {part.dtype_policy.name for part in sublayers(head)} == {"float32"}
    for layer in body:
        for part in sublayers(layer):
            assert part.dtype_policy.name == policy, part.path
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


@pytest.mark.parametrize("arguments", [{"dense_head": True}, {"dense_head": False}])
def test_classifiers_of_several_tokens_stay(arguments):
    model = FAMILIES["RefinedViT"](**arguments)
    set_precision(model, "mixed_bfloat16")
    heads = sublayers(model.layers[-1])
    assert {part.dtype_policy.name for part in heads} == {"float32"}


def test_other_precisions():
    with pytest.raises(ValueError, match="'float64'"):
        set_precision(FAMILIES["CaiT"](depth=1), "float64")
