"""Arguments that are refused before anything is written."""

import importlib.util
import inspect
import pickle

import keras
import numpy as np
import pytest
from harness import FAMILIES, run_python

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS

pytestmark = pytest.mark.backend_free

WRONG = [
    (
        {"format": "tflite"},
        r"`format` must .* Received: 'tflite'(.|\n)*litert +.tflite +tensorflow, ai_",
    ),
    ({"path": "m.tflite", "format": "onnx"}, r"`path` must end in \.onnx"),
    ({"path": "m.onnx", "format": "saved_model"}, "`path` must not end in another's suffix"),
    ({"preprocessing": 224}, "`preprocessing` must be True, False"),
    ({"outputs": "classes"}, "`outputs` must be None or"),
    ({"precision": "int8"}, r"`precision` must be(.|\n)*('saved_model', 'int8')"),
    ({"format": "torch", "image_sizes": [(8, 8)]}, "`image_sizes` must be"),
    ({"image_sizes": [8]}, "`image_sizes` must be"),
    ({"images": np.zeros((2, 8, 8, 3))}, "`images` must be"),
    ({"format": "litert", "precision": "bfloat16"}, "`precision` must be"),
    ({"format": "openvino", "compute_dtype": "float16"}, "`compute_dtype` must be None, or"),
    ({"data_format": "NCHW"}, "`data_format` must be"),
    ({"serving": 0}, "`serving` must be True, False, or the number"),
    ({"serving": "all"}, "`serving` must be True, False, or the number"),
    ({"serving": 3, "format": "onnx"}, "`serving` must be False but for .*'saved_model'"),
    ({"serving": True, "outputs": "logits"}, "`serving` must be False but for .*'probabilities'"),
    ({"imports": "my_module"}, "`imports` must be module names"),
    ({"tolerance": float("nan")}, "`tolerance` must be"),
    ({"tolerance": "small"}, "`tolerance` must be"),
    ({"opset": 20}, r"`opset` must be None, .* Received: \('saved_model', 20\)"),
    ({"format": "onnx", "opset": 16}, r"`opset` must be None, or one of \(17, 18,"),
    *(
        ({"path": f"m{suffix}"}, r"`path` must end in one of \.onnx, .* without a suffix")
        for suffix in (".keras", ".h5", ".pt", ".engine", ".ONNX2")
    ),
    ({"path": "/"}, "`path` must be the name of a file"),
]


@pytest.mark.parametrize("options, message", WRONG)
def test_wrong_arguments(unused, tmp_path, options, message):
    format = FORMATS.get(options.get("format"))
    options = {"path": f"m{format.suffix if format else ''}", **options}
    with pytest.raises(ValueError, match=message):
        kv.export(unused, tmp_path / options.pop("path"), verbose=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_export_is_a_function():
    """As process pools and editors need it."""
    assert pickle.loads(pickle.dumps(kv.export)) is kv.export
    assert list(inspect.signature(kv.export).parameters)[:3] == ["model", "path", "format"]
    assert kv.export.__doc__.startswith("Export a model") and kv.export.verify


COMMAND = """
import sys
sys.argv = ["keras-vitx"]
import keras_vitx as kv
print(callable(kv.fuse), type(kv.export).__name__)
"""


def test_export_is_a_function_for_commands():
    """Whose names are imported when they are read."""
    assert run_python(COMMAND).stdout.split() == ["True", "function"]


def one_linear_output():
    images = keras.Input((8, 8, 3))
    return keras.Model(images, keras.layers.Dense(1)(keras.layers.Flatten()(images)))


def two_inputs():
    first, second = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    return keras.Model([first, second], keras.layers.Add()([first, second]))


def any_channels():
    images = keras.Input((8, 8, None))
    return keras.Model(images, keras.layers.Rescaling(2.0)(images))


@pytest.mark.parametrize(
    "make, options, message",
    [
        (lambda: "CaiT_Mini", {}, "must be a built Keras model of images"),
        (
            lambda: keras.Sequential([keras.layers.Dense(2)]),
            {},
            "must be a built Keras model of images",
        ),
        (two_inputs, {}, "must be a built Keras model of images"),
        (any_channels, {}, "must be a built Keras model of images"),
        (lambda: FAMILIES["ViT"](include_top=False), {"serving": 3}, "must end in a classifier"),
        (one_linear_output, {"outputs": "probabilities"}, "`outputs` must be None or 'logits'"),
    ],
)
def test_wrong_models(make, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        kv.export(make(), tmp_path / "model", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(unused, tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name
    )
    with pytest.raises(ImportError, match=r'needs onnxruntime.*pip install "\.\[onnx\]"'):
        kv.export(unused, tmp_path / "m.onnx", "onnx", verbose=False)
