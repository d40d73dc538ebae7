"""The comparison of files with models; test_export_formats.py compares real files."""

from pathlib import Path

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, precision
from keras_vitx.export.check import batches_for, compare, named_batches

from keras_vitx.export import FORMATS
from keras_vitx.export.graph import graph_of
from keras_vitx.layers import ImagePreprocessing

pytestmark = pytest.mark.backend_free


def compared(model, change, tolerance=None):
    """Compare a model with a file that returns a function of its outputs."""
    graph = graph_of(model, FORMATS["saved_model"])
    batches = named_batches(graph)
    assert [len(batch) for batch in batches.values()] == [1, 8]
    name, found = graph.outputs[0], {key: array(model(batch)) for key, batch in batches.items()}
    changed = {f"{key}.{name}": change(outputs) for key, outputs in found.items()}
    return compare(changed, graph, batches, tolerance, Path("file"))[0]


def by_an_eighth(outputs):
    return outputs + (0.125 * outputs.max() if len(outputs) > 1 else 0)


def test_difference_is_relative_to_the_largest_output(classifier):
    assert compared(classifier, by_an_eighth, tolerance=0.2) == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(
    "change, words",
    [
        (by_an_eighth, r"by 0\.1[23] of its largest output; tolerance is 5e-05\."),
        (lambda outputs: np.full_like(outputs, np.nan), "by nan"),
        (lambda outputs: outputs[:, 1:], r"must be \(1, 5\).* Received: \(1, 4\)"),
    ],
)
def test_what_does_not_pass(change, words, classifier):
    with pytest.raises(ValueError, match=words):
        compared(classifier, change)


@pytest.mark.parametrize("kind", ["mixed_bfloat16", "int8", "float8", "float32"])
def test_tolerance_goes_by_the_precision_of_inner_layers(kind):
    with precision(kind if kind.startswith("mixed") else "float32"):
        inner = FAMILIES["ViT"](depth=1)
    if kind in ("int8", "float8"):
        inner.quantize(kind)
    model = keras.Model(inner.input, keras.layers.Identity()(inner.output))
    if kind == "float32":
        with pytest.raises(ValueError, match="tolerance is 5e-05"):
            compared(model, lambda outputs: 1.02 * outputs)
    else:
        assert 0.01 < compared(model, lambda outputs: 1.02 * outputs) < 0.03


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
        (network(8, 8, 3, batch_size=1), True, [(1, 8, 8, 3)]),
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


def test_own_images():
    (batch,) = batches_for(network(None, 8, 3), np.full((4, 9, 8, 3), 255, "int32"))
    assert batch.shape == (4, 9, 8, 3) and batch.dtype == np.uint8 and batch.min() == 255
