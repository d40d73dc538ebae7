"""Models that Keras has quantized, with and without LoRA."""

import keras
import numpy as np
import pytest
from harness import BACKEND, precision, randomize, randomized

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS
from keras_vitx.keras_internals import sublayers


def vit(**options):
    """A model whose MLP has two groups of weights in int4, of 128 and of 32 rows."""
    model = kv.ViT(40, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5, **options)
    randomize(model, 0.1)
    return model


MODELS = {
    "ViT": vit,
    "distilled": lambda: vit(distillation_token=True),
    "dense head": lambda: randomized("RefinedViT", 0.1, dense_head=True),
}


def difference(name, steps, directory, format):
    model = MODELS[name]()
    for step in steps.split(", "):
        add_lora(model) if step == "lora" else model.quantize(step)
    path = directory / f"model{FORMATS[format].suffix}"
    return kv.export(model, path, format, verbose=False).difference


def add_lora(model):
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(2)
            update = np.random.default_rng(0).normal(0, 0.05, layer.lora_kernel_b.shape)
            layer.lora_kernel_b.assign(update)


@pytest.mark.parametrize(
    "format, name, steps",
    [
        ("onnx", "dense head", "int8"),
        ("onnx", "ViT", "int8, lora"),
        ("onnx", "ViT", "float8"),
        ("openvino", "distilled", "int4"),
        ("openvino", "ViT", "int4, lora"),
        ("litert", "ViT", "lora, int4"),
        ("saved_model", "ViT", "int8, lora"),
        ("torch", "ViT", "int4"),
        ("stablehlo", "distilled", "int8"),
    ],
)
def test_converters_of_the_backend(format, name, steps, tmp_path):
    if FORMATS[format].backend != BACKEND:
        pytest.skip(f"{FORMATS[format].backend} writes it")
    pytest.importorskip(FORMATS[format].needs[-1])
    assert difference(name, steps, tmp_path, format) < 2e-5


@pytest.mark.parametrize("format, mode", [("onnx", "int8"), ("litert", "int4")])
def test_half_precision_becomes_float32(format, mode, tmp_path):
    if FORMATS[format].backend != BACKEND:
        pytest.skip(f"{FORMATS[format].backend} writes it")
    with precision("mixed_bfloat16"):
        assert difference("ViT", mode, tmp_path, format) < 0.05


@pytest.mark.backend_free
def test_lora_reaches_another_backend_unrounded(tmp_path):
    # A `.keras` file would hold it merged and rounded to int4: 0.1 of the largest output.
    assert difference("ViT", "int4, lora", tmp_path, "stablehlo") < 2e-5


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "format, mode",
    [("onnx", "int4"), ("openvino", "int8"), ("litert", "int8"), ("litert", "float8")],
)
def test_what_a_converter_lacks_is_refused(format, mode, tmp_path):
    words = f"`model` must not be quantized to {mode} for the format '{format}'"
    with pytest.raises(ValueError, match=words):
        difference("ViT", mode, tmp_path, format)
    assert not list(tmp_path.iterdir())
