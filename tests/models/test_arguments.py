"""Wrong arguments: an error at construction that names the argument and its value."""

import keras
import pytest
from harness import FAMILIES, numbers

import keras_vitx as kv

WRONG = {
    "side": ({"input_shape": (20, 16, 3)}, "input_shape", "(20, 16, 3)"),
    "other_side": ({"input_shape": (16, 20, 3)}, "input_shape", "(16, 20, 3)"),
    "missing_axis": ({"input_shape": (16, 16)}, "input_shape", "(16, 16)"),
    "four_axes": ({"input_shape": (1, 16, 16, 3)}, "input_shape", "(1, 16, 16, 3)"),
    "none": ({"input_shape": (None, None, 3)}, "input_shape", "(None, None, 3)"),
    "number": ({"input_shape": 16}, "input_shape", "16"),
    "zero_side": ({"input_shape": (0, 16, 3)}, "input_shape", "(0, 16, 3)"),
    "fraction": ({"input_shape": (16.0, 16, 3)}, "input_shape", "(16.0, 16, 3)"),
    "no_classes": ({"classes": 0}, "classes", "0"),
    "negative_classes": ({"classes": -1}, "classes", "-1"),
    "fractional_classes": ({"classes": 2.5}, "classes", "2.5"),
    "true_classes": ({"classes": True}, "classes", "True"),
    "text_classes": ({"classes": "ten"}, "classes", "'ten'"),
    "pooling": ({"pooling": "foo"}, "pooling", "'foo'"),
    "activation": ({"classifier_activation": "foo"}, "classifier_activation", "'foo'"),
    "weights": ({"weights": "foo"}, "weights", "'foo'"),
    "tensor": ({"input_tensor": numbers((1, 16, 16, 3))}, "input_tensor", "ndarray"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_argument_of_any_family(family, case):
    arguments, name, value = WRONG[case]
    with pytest.raises(ValueError, match=name) as error:
        FAMILIES[family](**arguments)
    assert value in str(error.value)


CAIT = {
    "heads": ({"num_heads": 3}, "num_heads", "num_heads=3, dim=8"),
    "class_token_late": ({"class_token_at": 4}, "class_token_at", "4"),
    "class_token_early": ({"class_token_at": -1}, "class_token_at", "-1"),
    "blind_token": ({"class_depth": 0}, "class_depth=0", "pooling=None"),
    "blind_token_asked_for": ({"class_depth": 0, "pooling": "token"}, "class_depth=0", "'token'"),
    "no_heads": ({"num_heads": 0}, "num_heads", "0"),
    "no_width": ({"dim": 0}, "dim", "0"),
    "no_depth": ({"depth": -1}, "depth", "-1"),
    "half_a_block": ({"depth": 2.5}, "depth", "2.5"),
    "class_depth": ({"class_depth": -1}, "class_depth", "-1"),
    "no_patch": ({"patch_size": 0}, "patch_size", "0"),
    "drop_path": ({"drop_path": 1.0}, "rate", "1.0"),
}


@pytest.mark.parametrize("case", CAIT)
def test_wrong_argument_of_cait(case):
    arguments, name, value = CAIT[case]
    with pytest.raises(ValueError, match=name) as error:
        FAMILIES["CaiT"](**arguments)
    assert value in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_input_shape_that_contradicts_the_tensor(family):
    with pytest.raises(ValueError, match="contradicts") as error:
        FAMILIES[family](input_shape=(16, 16, 3), input_tensor=keras.Input((16, 24, 3)))
    assert "(16, 16, 3)" in str(error.value)
    assert "(None, 16, 24, 3)" in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_input_tensor_of_unknown_size(family):
    with pytest.raises(ValueError, match="input_shape"):
        FAMILIES[family](input_shape=None, input_tensor=keras.Input((None, None, 3)))


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_argument(family):
    with pytest.raises(TypeError, match="colour"):
        FAMILIES[family](colour="blue")


@pytest.mark.parametrize(
    ("name", "hint"), [("CaiT_S25", "'CaiT_S24'"), ("cait_xs36", "'CaiT_XS36'"), ("?", "CaiT_Mini")]
)
def test_unknown_size(name, hint):
    with pytest.raises(ValueError, match="No model is named") as error:
        kv.create_model(name)
    assert repr(name) in str(error.value)
    assert hint in str(error.value)
