"""Arguments that are refused before anything is written."""

import importlib

import keras
import numpy as np
import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS, require, table

pytestmark = pytest.mark.backend_free

WRONG = [
    ({"format": "tflite"}, r"format: 'tflite' is unknown(.|\n)*litert +.tflite +tensorflow, ai_"),
    ({"path": "m.tflite", "format": "onnx"}, r"path should end in \.onnx"),
    ({"preprocessing": 224}, "preprocessing should be True, False"),
    ({"outputs": "classes"}, "outputs should be None"),
    ({"precision": "int8"}, "precision: 'int8' is not available"),
    ({"format": "torch", "image_sizes": [(8, 8)]}, "image_sizes should be empty except"),
    ({"image_sizes": [8]}, "image_sizes should be"),
    ({"images": np.zeros((2, 8, 8, 3))}, "images should be"),
    ({"format": "onnx", "precision": "int8-static"}, "'int8-static' needs calibration"),
    (
        {"format": "onnx", "precision": "int8", "calibration": "photos"},
        "calibration is for precision='int8-static'",
    ),
    ({"format": "openvino", "compute_dtype": "float16"}, "`compute_dtype` must be None or"),
    ({"data_format": "NCHW"}, "`data_format` must be"),
    ({"serving": 0}, "serving should be True, False, or the number"),
    ({"serving": "all"}, "serving should be True, False, or the number"),
    ({"serving": 3, "format": "onnx"}, "serving needs format='saved_model'"),
    ({"serving": True, "outputs": "logits"}, "serving returns probabilities"),
    ({"imports": "my_module"}, "imports should be module names"),
    ({"imports": (1,)}, "imports should be module names"),
    ({"tolerance": -1}, "tolerance should be"),
    ({"tolerance": float("nan")}, "tolerance should be"),
    ({"tolerance": "small"}, "tolerance should be"),
]


@pytest.mark.parametrize("options, message", WRONG)
def test_wrong_arguments(unused, tmp_path, options, message):
    format = FORMATS.get(options.get("format", "saved_model"))
    options = {"path": f"m{format.suffix if format else ''}", **options}
    with pytest.raises(ValueError, match=message):
        kv.export(unused, tmp_path / options.pop("path"), verbose=False, **options)
    assert list(tmp_path.iterdir()) == []


def two_inputs():
    first, second = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    return keras.Model([first, second], keras.layers.Add()([first, second]))


def any_channels():
    images = keras.Input((8, 8, None))
    return keras.Model(images, keras.layers.Rescaling(2.0)(images))


@pytest.mark.parametrize(
    "make, options, message",
    [
        (lambda: "CaiT_Mini", {}, "should be a built Keras model"),
        (lambda: keras.Sequential([keras.layers.Dense(2)]), {}, "should be a built Keras model"),
        (two_inputs, {}, "should take one batch of images"),
        (any_channels, {}, "should take one batch of images"),
        (lambda: FAMILIES["ViT"](include_top=False), {"serving": 3}, "ends in a classifier"),
    ],
)
def test_wrong_models(make, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        kv.export(make(), tmp_path / "model", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(unused, tmp_path, monkeypatch):
    formats = importlib.import_module("keras_vitx.export.formats")
    installed = {package for each in FORMATS.values() for package in each.needs} - {"onnxruntime"}
    monkeypatch.setattr(formats, "_is_installed", installed.__contains__)
    with pytest.raises(ImportError, match=r'needs onnxruntime.*pip install "\.\[onnx\]"'):
        kv.export(unused, tmp_path / "m.onnx", "onnx", verbose=False)
    with pytest.raises(ImportError, match=r"'openvino' in int8 needs nncf.*\[nncf\]"):
        require(FORMATS["openvino"], "int8")


def test_an_unknown_precision_shows_the_table(unused, tmp_path):
    with pytest.raises(ValueError, match="'int3' is not available") as error:
        kv.export(unused, tmp_path / "m", precision="int3")
    assert table() in str(error.value)


def test_the_old_name_still_exports(unused, tmp_path):
    with pytest.warns(DeprecationWarning, match="`saved_model` is now `export`"):
        export = kv.export.saved_model
    with pytest.raises(ValueError, match="outputs should be"):
        export(unused, tmp_path / "m", outputs="classes")
