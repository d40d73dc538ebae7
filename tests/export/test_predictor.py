"""`kv.predictor`: images in, names out, from several threads."""

import copy
import io
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import keras
import numpy as np
import pytest
from harness import array, close, randomized

import keras_vitx as kv

NAMES = ("cat", "dog", "fish", "owl")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model():
    model = randomized("ConViT", classes=4)
    model.class_names = NAMES
    return model


@pytest.fixture(scope="module")
def pictures(model):
    return list(RANDOM.integers(0, 256, (11, *model.input_shape[1:])).astype("uint8"))


def one_by_one(model, pictures):
    inputs = kv.preprocess_input(pictures, model)
    return np.concatenate([array(model(image[None])) for image in inputs])


@pytest.mark.backend_free
def test_images_in_names_out(model, pictures):
    classify = kv.predictor(model, batch_sizes=(1, 4))
    expected = kv.decode_predictions(one_by_one(model, pictures), 2, model)
    found = classify(pictures, top=2)
    (one,) = classify(pictures[0], top=1)
    for row, wanted in zip([*found, one], [*expected, expected[0][:1]], strict=True):
        assert [each[:2] for each in row] == [each[:2] for each in wanted]
        close([each[2] for each in row], [each[2] for each in wanted])


@pytest.mark.backend_free
def test_batches_are_padded_to_a_few_sizes(model, pictures, monkeypatch):
    shapes, classify = [], kv.predictor(model, batch_sizes=(4, 1))
    run = classify._run
    monkeypatch.setattr(classify, "_run", lambda batch: (shapes.append(len(batch)), run(batch))[1])
    for count in (11, 3):
        close(
            [row[0][2] for row in classify(pictures[:count], top=1)],
            one_by_one(model, pictures[:count]).max(axis=-1),
        )
    assert shapes == [4, 4, 4, 4]


def test_one_image_is_compiled(model, pictures, monkeypatch):
    classify = kv.predictor(model)
    expected = classify(pictures[0])
    monkeypatch.setattr(type(model), "call", None)
    assert classify(pictures[0]) == expected


@pytest.mark.backend_free
def test_images_of_json_and_of_tensors(model, pictures):
    image, predict = pictures[0], kv.predictor(model)
    tensor = keras.ops.convert_to_tensor(image)
    for images in (image.tolist(), [image.tolist()], tensor, [tensor]):
        assert predict(images) == predict(image)
    assert predict([image.tolist()] * 2) == predict([image] * 2)
    for images in (None, iter([image]), {"image": image}, np.array(["a.png"])):
        with pytest.raises(ValueError, match="`images` must be paths"):
            predict(images)


def test_eight_threads_leave_the_model_as_it_was(model, pictures):
    """Under JAX, `model.predict` fails here, and leaves the model without variables.

    The predictor comes from another process, as it might.
    """
    inputs, expected = kv.preprocess_input(pictures, model), one_by_one(model, pictures)
    classify = pickle.loads(pickle.dumps(kv.predictor(model)))

    def call(index):
        start = index % len(inputs)
        close(classify.probabilities(inputs[start : start + 3]), expected[start : start + 3])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(48)))
    close(one_by_one(model, pictures), expected)


def answers(classify, images):
    return [row[0] for row in classify(images, top=1)]


def test_a_predictor_of_a_plain_model_travels():
    network = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    network.add(keras.layers.Dense(4, activation="softmax"))
    network.preprocessing, network.class_names = kv.Preprocessing.pixels(3), NAMES
    classify = kv.predictor(network)
    images = list(RANDOM.integers(0, 256, (3, 8, 8, 3)).astype("uint8"))
    expected = answers(classify, images)
    assert answers(pickle.loads(pickle.dumps(classify)), images) == expected
    assert answers(copy.deepcopy(classify), images) == expected
    joblib, file = pytest.importorskip("joblib"), io.BytesIO()
    joblib.dump(classify, file)
    assert answers(joblib.load(file), images) == expected
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(answers, classify, images).result() == expected
