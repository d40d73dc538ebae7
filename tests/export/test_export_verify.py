"""The comparison of files with models; test_export_formats.py compares real files."""

import importlib

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, precision

from keras_vitx.export import verify
from keras_vitx.export.check import batches_for
from keras_vitx.export.graph import output_names
from keras_vitx.layers import ImagePreprocessing

pytestmark = pytest.mark.backend_free
convert = importlib.import_module("keras_vitx.export.convert")


@pytest.fixture
def verified(tmp_path, monkeypatch):
    """`verify` of a file that returns a function of the model's outputs."""

    def call(model, change, **options):
        def run(script, format, path, inputs, outputs, backend):
            batches = np.load(inputs)
            assert path == tmp_path and [len(batch) for batch in batches.values()] == [1, 8]
            saved = {
                f"{name}.{output_names(model)[1][0]}": change(array(model(batch)))
                for name, batch in batches.items()
            }
            np.savez(outputs, latency_ms=1.0, **saved)

        (tmp_path / "saved_model.pb").touch()
        monkeypatch.setattr(convert, "run_python", run)
        return verify(tmp_path, model, trust=True, **options)

    return call


def by_an_eighth(outputs):
    return outputs + (0.125 * outputs.max() if len(outputs) > 1 else 0)


def test_difference_is_relative_to_the_largest_output(classifier, verified):
    assert verified(classifier, by_an_eighth, tolerance=0.2) == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(
    "change, words",
    [
        (by_an_eighth, r"by 0\.1[23] of its largest output; tolerance is 5e-05\."),
        (lambda outputs: np.full_like(outputs, np.nan), "by nan"),
        (lambda outputs: outputs[:, 1:], r"must be \(1, 5\).* Received: \(1, 4\)"),
    ],
)
def test_what_does_not_pass(change, words, classifier, verified):
    with pytest.raises(ValueError, match=words):
        verified(classifier, change)


@pytest.mark.parametrize("kind", ["mixed_bfloat16", "int8", "float8", "float32"])
def test_tolerance_goes_by_the_precision_of_inner_layers(verified, kind):
    with precision(kind if kind.startswith("mixed") else "float32"):
        inner = FAMILIES["ViT"](depth=1)
    if kind in ("int8", "float8"):
        inner.quantize(kind)
    model = keras.Model(inner.input, keras.layers.Identity()(inner.output))
    if kind == "float32":
        with pytest.raises(ValueError, match="tolerance is 5e-05"):
            verified(model, lambda outputs: 1.02 * outputs)
    else:
        assert 0.01 < verified(model, lambda outputs: 1.02 * outputs) < 0.03


def network(*shape, dtype="uint8", layer=None, **options):
    images = keras.Input(shape, dtype=dtype, **options)
    layer = layer or keras.layers.Conv2D(2, 1)
    return keras.Model(images, layer(keras.ops.cast(images, "float32")))


FLOAT = {"dtype": "float32"}
PIXELS = (ImagePreprocessing((8, 8), [0.5], [0.5]), keras.layers.Rescaling(1 / 255))


@pytest.mark.parametrize(
    "model, are_pixels, shapes",
    [
        (network(None, None, 3), True, [(8, 96, 128, 3), (8, 160, 112, 3)]),
        (network(None, 8, 1), True, [(8, 96, 8, 1), (8, 160, 8, 1)]),
        (network(8, 8, 3, batch_size=1), True, [(1, 8, 8, 3)]),
        (network(8, 8, 4), True, [(8, 8, 8, 4)]),
        (network(8, 8, 1, **FLOAT), False, [(8, 8, 8, 1)]),
        *((network(8, 8, 1, layer=layer, **FLOAT), True, [(8, 8, 8, 1)]) for layer in PIXELS),
    ],
)
def test_images_have_the_form_that_the_model_takes(model, are_pixels, shapes):
    batches = batches_for(model)
    assert [batch.shape for batch in batches] == shapes
    for batch in batches:
        assert batch.dtype == model.inputs[0].dtype
        assert batch.min() >= 0 and batch.std() > 50 if are_pixels else batch.min() < 0


def test_images_in_the_layout_of_the_file():
    (images,) = batches_for(network(3, 8, 9, **FLOAT), data_format="channels_first")
    assert images.shape == (8, 3, 8, 9)


def test_own_images():
    (batch,) = batches_for(network(None, 8, 3), np.full((4, 9, 8, 3), 255, "int32"))
    assert batch.shape == (4, 9, 8, 3) and batch.dtype == np.uint8 and batch.min() == 255
    with pytest.raises(ValueError, match=r"`images` must be \(2 or more, any, 8, 3\)"):
        batches_for(network(None, 8, 3), np.zeros((2, 8, 9, 3), "uint8"))
