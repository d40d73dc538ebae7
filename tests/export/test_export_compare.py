"""The comparison of anything that computes the same with its model."""

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, precision

import keras_vitx as kv
from keras_vitx.export.compare import batches_of

pytestmark = pytest.mark.backend_free


def compared(model, change, tolerance=None):
    """Compare a model with one whose outputs are changed."""
    return kv.export.compare(model, lambda batch: change(array(model(batch))), tolerance=tolerance)


def by_an_eighth(outputs):
    return outputs + (0.125 * outputs.max() if len(outputs) > 1 else 0)


def test_difference_is_relative_to_the_largest_output(classifier):
    assert compared(classifier, by_an_eighth, tolerance=0.2) == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(
    "change, words",
    [
        (by_an_eighth, r"within 5e-05 of the largest\. .* of 0\.1[23]"),
        (lambda outputs: np.full_like(outputs, np.nan), "of nan"),
        (lambda outputs: outputs[:, :1], r"must be \(1, 5\).* Received: \(1, 1\)"),
    ],
)
def test_what_does_not_pass(change, words, classifier):
    with pytest.raises(ValueError, match=words):
        compared(classifier, change)


@pytest.mark.parametrize("kind", ["mixed_bfloat16", "int8"])
def test_tolerance_goes_by_the_precision_of_inner_layers(kind):
    with precision("float32" if kind == "int8" else kind):
        inner = FAMILIES["ViT"](depth=1)
    if kind == "int8":
        inner.quantize(kind)
    model = keras.Model(inner.input, keras.layers.Identity()(inner.output))
    assert 0.01 < compared(model, lambda outputs: 1.02 * outputs) < 0.03


@pytest.mark.parametrize(
    "dtype, form, shapes",
    [
        ("uint8", (None, None, None, 3), [(1, 96, 128, 3), (8, 160, 112, 3)]),
        ("uint8", (1, 8, 8, 1), [(1, 8, 8, 1)] * 2),
        ("float32", (None, 8, 8, 1), [(1, 8, 8, 1), (8, 8, 8, 1)]),
    ],
)
def test_images_have_the_form_that_the_model_takes(dtype, form, shapes):
    images = keras.Input(batch_shape=form, dtype=dtype)
    model = keras.Model(images, keras.layers.Conv2D(2, 1)(keras.ops.cast(images, "float32")))
    if dtype == "uint8":
        model.preprocessing = kv.Preprocessing.pixels(form[-1])
    batches = batches_of(model)
    assert [batch.shape for batch in batches] == shapes
    for batch in batches:
        assert batch.dtype == dtype
        assert batch.min() >= 0 and batch.std() > 50 if dtype == "uint8" else batch.min() < 0


def test_own_images_and_several_outputs(classifier):
    images = np.random.default_rng(0).random((4, *classifier.input_shape[1:]), "float32")
    two = keras.Model(classifier.input, {"b": classifier.output, "a": classifier.layers[1].output})
    sizes = []

    def run(batch):
        sizes.append(len(batch))
        return {name: array(each) for name, each in two(batch).items()}

    assert kv.export.compare(two, run, images) == 0 and sizes == [1, 4]
