"""Exports in lower precisions, from the backend of this run, opened in their own runtimes."""

import importlib.util

import numpy as np
import pytest
from harness import BACKEND, randomize
from PIL import Image

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS
from keras_vitx.export.prepare import calibration_images, prepare

CONVERTED = [
    (name, precision)
    for name in ("onnx", "openvino", "litert")
    for precision in FORMATS[name].precisions
    if precision != "float16"
]
OWN = {"tensorflow": "saved_model", "jax": "stablehlo", "torch": "torch"}[BACKEND]


@pytest.fixture(scope="module")
def wide():
    """A model whose products hold nearly all of its weights: 1.8 MB in float32."""
    model = kv.ViT(192, 1, 3, patch_size=8, input_shape=(16, 16, 3), classes=5)
    randomize(model)
    return model


def size_and_difference(model, folder, name, precision, **options):
    path = folder / f"model{FORMATS[name].suffix}"
    exported = kv.export(model, path, name, precision=precision, verbose=False, **options)
    assert 0 < exported.difference < 0.25 and exported.top1 is not None
    floats = 4 * sum(np.prod(weight.shape) for weight in model.weights)
    return exported.size / floats, exported.difference


@pytest.mark.parametrize("name, precision", CONVERTED)
def test_converted_formats(name, precision, wide, tmp_path):
    if FORMATS[name].backend != BACKEND:
        pytest.skip(f"{FORMATS[name].backend} writes it")
    quantizer = FORMATS[name].quantizer
    if "int" in precision and quantizer and not importlib.util.find_spec(quantizer):
        pytest.skip(f"{quantizer} is not installed")
    images = np.random.default_rng(0).normal(0, 1, (4, 16, 16, 3)).astype("float32")
    options = {"calibration": images} if precision == "int8-static" else {}
    size, _ = size_and_difference(wide, tmp_path, name, precision, **options)
    assert size < {"bfloat16": 0.58, "int4": 0.35}.get(precision, 0.45)


def test_bfloat16_in_the_format_of_the_backend(wide, tmp_path):
    size, difference = size_and_difference(wide, tmp_path, OWN, "bfloat16")
    # A graph is in the file as well.
    assert size < 0.75 and difference < 0.05


def test_a_model_that_keras_has_rounded_to_int4(tmp_path):
    model = kv.fuse(kv.ViT(128, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5))
    model.quantize("int4")
    path = tmp_path / f"model{FORMATS[OWN].suffix}"
    exported = kv.export(model, path, OWN, verbose=False)
    assert exported.difference <= 1e-5 and "quantized layers" in exported.not_fused


@pytest.mark.backend_free
def test_calibration_images_of_a_folder_are_preprocessed(unused, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 48, 3)).astype("uint8")
    for index, image in enumerate(pixels):
        file = tmp_path / f"class_{index}" / "image.png"
        file.parent.mkdir()
        Image.fromarray(image).save(file)
    found = calibration_images(prepare(unused, FORMATS["onnx"]), tmp_path)
    np.testing.assert_array_equal(found, kv.preprocess_input(pixels, unused))
    found = calibration_images(prepare(unused, FORMATS["onnx"], (20, 24)), tmp_path)
    assert found.shape == (3, 20, 24, 3) and found.dtype == np.uint8


@pytest.mark.backend_free
def test_calibration_errors(unused, tmp_path):
    parts = prepare(unused, FORMATS["onnx"])
    with pytest.raises(ValueError, match=r"`calibration` must have images"):
        calibration_images(parts, tmp_path)
    for shape in [(2, 16, 32, 3), (0, 32, 16, 3), (32, 16, 3)]:
        with pytest.raises(ValueError, match=r"`calibration` must be .* \(1 or more, 32, 16, 3\)"):
            calibration_images(parts, np.zeros(shape, "float32"))
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(OSError, match="broken"):
        calibration_images(parts, tmp_path)
