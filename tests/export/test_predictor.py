"""`kv.predictor`: images in, names out, from several threads."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, close, randomize

import keras_vitx as kv
from keras_vitx.export.formats import FORMATS
from keras_vitx.preprocessing import ModelInput

NAMES = ("cat", "dog", "fish", "owl")


@pytest.fixture(scope="module")
def model():
    model = FAMILIES["ConViT"](classes=4)
    randomize(model)
    model.class_names = NAMES
    return model


@pytest.fixture(scope="module")
def pictures(model):
    sides = model.input_shape[1:3]
    return list(np.random.default_rng(0).integers(0, 256, (11, *sides, 3)).astype("uint8"))


def one_by_one(model, pictures):
    inputs = kv.preprocess_input(pictures, model)
    return np.concatenate([keras.ops.convert_to_numpy(model(image[None])) for image in inputs])


def test_images_in_names_out(model, pictures, tmp_path):
    classify = kv.predictor(model, batch_sizes=(1, 4))
    expected = kv.decode_predictions(one_by_one(model, pictures), 2, model)
    found = classify(pictures, top=2)
    assert [[name for _, name, _ in row] for row in found] == [
        [name for _, name, _ in row] for row in expected
    ]
    close(np.array([[p for *_, p in row] for row in found]), [[p for *_, p in r] for r in expected])
    (one,) = classify(pictures[0], top=1)
    assert one[0][:2] == expected[0][0][:2]


@pytest.mark.backend_free
def test_batches_are_padded_to_a_few_sizes(model):
    shapes, inputs = [], np.random.default_rng(0).random((11, 2, 2, 3), "float32")

    def run(batch):
        shapes.append(len(batch))
        return batch[:, 0, 0]

    images = ModelInput((None, 2, 2, 3), model.preprocessing)
    classify = kv.export.Predictor(run, images, "float32", NAMES[:3], batch_sizes=(4, 1))
    close(classify.probabilities(inputs), inputs[:, 0, 0])
    close(classify.probabilities(inputs[:3]), inputs[:3, 0, 0])
    assert shapes == [4, 4, 4, 4]
    with pytest.raises(ValueError, match="`batch_sizes` must be positive integers"):
        kv.predictor(model, batch_sizes=())


def in_threads(classify, inputs, expected):
    def call(index):
        start = index % len(inputs)
        close(classify.probabilities(inputs[start : start + 3]), expected[start : start + 3])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(48)))


def test_eight_threads(model, pictures):
    """Under JAX, `model.predict` fails here, and leaves the model without variables."""
    inputs, expected = kv.preprocess_input(pictures, model), one_by_one(model, pictures)
    in_threads(kv.predictor(model), inputs, expected)
    # The model is as it was.
    close(one_by_one(model, pictures), expected)


def test_an_exported_file_is_the_same_object(model, pictures, tmp_path):
    name = {"tensorflow": "litert", "jax": "stablehlo", "torch": "torch"}[BACKEND]
    path = tmp_path / f"model{FORMATS[name].suffix}"
    sides = model.input_shape[1:3]
    options = {"preprocessing": sides, "verify": False, "verbose": False}
    model.preprocessing = model.preprocessing.replace(crop_ratio=1.0)
    kv.export(model, path, name, **options)
    if FORMATS[name].risk:
        with pytest.raises(ValueError, match="must be a file that you trust"):
            kv.predictor(path)
    classify = kv.predictor(path, trust=True)
    expected = one_by_one(model, pictures)
    assert classify.class_names == NAMES
    names = [row[0][1] for row in classify(pictures, top=1)]
    assert names == [NAMES[index] for index in expected.argmax(axis=-1)]
    in_threads(classify, np.stack(pictures), expected)


@pytest.mark.backend_free
def test_what_is_no_classifier_of_images(tmp_path):
    with pytest.raises(ValueError, match="must end in a classifier"):
        kv.predictor(FAMILIES["ViT"](include_top=False, pooling="avg"))
    with pytest.raises(FileNotFoundError, match="is not ONNX data, an exported file"):
        kv.predictor(tmp_path / "model.onnx")
