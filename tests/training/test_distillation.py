"""A student learns from a teacher; against the formulas, for a linear student."""

import keras
import numpy as np
import pytest
from harness import array, close, softmax
from training import teachers
from training.fitting import best_of, named, run_of
from training.teachers import IMAGES, OURS, PHOTOS, SHORT, SOFT, Given, student_of, teacher_of

import keras_vitx as kv
from keras_vitx.training import Distillation, SmoothedCrossentropy

SMOOTHING, TAU = 0.1, 3.0
INTEGERS = np.array([0, 1, 2, 3, 3, 0])


@pytest.mark.parametrize("kind, labels", (("hard", "integers"), ("soft", "mixed")))
@pytest.mark.parametrize("head, activation", (("one", None), ("token", "softmax")))
def test_loss_and_gradients(head, activation, kind, labels):
    """One step of SGD, whose loss and gradients are known in closed form."""
    student, teacher = student_of(head, activation), teacher_of(activation=activation)
    distillation = Distillation(teacher, kind, TAU)
    weight = {"hard": 0.5, "soft": 0.1}[kind]

    given = INTEGERS if labels == "integers" else SOFT
    y = np.eye(4)[INTEGERS] if labels == "integers" else SOFT
    y = (1 - SMOOTHING) * y + SMOOTHING / 4
    x = IMAGES.reshape(6, -1)
    taught = array(teacher(IMAGES))
    taught = np.log(taught) if activation else taught
    layer = student.get_layer("head")
    inputs = [x, x] if head == "one" else [x[:, :12], x[:, 12:]]
    denses = [layer, layer] if head == "one" else [layer.head, layer.head_dist]
    before = [array(dense.kernel.value).copy() for dense in denses]
    one, other = (i @ kernel for i, kernel in zip(inputs, before, strict=True))  # zero biases

    loss = (1 - weight) * -(y * np.log(softmax(one))).sum(-1).mean()
    slopes = [(1 - weight) * (softmax(one) - y) / 6]
    if kind == "hard":
        t = np.eye(4)[taught.argmax(-1)]
        loss += weight * -(t * np.log(softmax(other))).sum(-1).mean()
        slopes.append(weight * (softmax(other) - t) / 6)
    else:
        p, q = softmax(taught / TAU), softmax(other / TAU)
        loss += weight * TAU**2 * (p * np.log(p / q)).sum(-1).mean()
        slopes.append(weight * TAU * (q - p) / 6)
    gradients = [i.T @ slope for i, slope in zip(inputs, slopes, strict=True)]
    if head == "one":
        gradients = [sum(gradients)] * 2

    own = SmoothedCrossentropy(SMOOTHING, not activation)
    student.compile(keras.optimizers.SGD(1.0), distillation.loss(student, own))
    close(
        student.train_on_batch(*next(iter(distillation.batches([(IMAGES, given)], student)))), loss
    )
    for dense, old, gradient in zip(denses, before, gradients, strict=True):
        assert np.abs(gradient).max() > 1e-3
        close(old - array(dense.kernel.value), gradient, 1e-4)


@pytest.mark.backend_free
@pytest.mark.parametrize("size", ((2, 4), (4, 8), (None, None)))
@pytest.mark.parametrize("preprocessing", (OURS, teachers.THEIRS, "function"))
def test_what_the_teacher_sees(size, preprocessing):
    """The images of the batch, as its own preprocessing would prepare them."""
    own = preprocessing if preprocessing != "function" else lambda images: images / 100 - 1
    teacher = teacher_of(size, preprocessing=own)
    images, labels, weights = [*Distillation(teacher, "soft").batches(Given(), student_of())][1]
    np.testing.assert_array_equal(images, IMAGES[3:])
    np.testing.assert_array_equal(labels["head"], SOFT[3:])
    np.testing.assert_array_equal(weights, [3, 4, 5])
    pixels = images * np.float32(OURS.std) + np.float32(OURS.mean)
    if size == (4, 8):
        pixels = array(keras.ops.image.resize(pixels, size, "bicubic", antialias=True))
    if preprocessing == "function":
        expected = 255 * pixels / 100 - 1
    else:
        expected = (pixels - np.float32(own.mean)) / np.float32(own.std)
    close(labels["teacher"], softmax(array(teacher(expected.astype("float32")))), 1e-4)


@pytest.mark.backend_free
def test_pixels_are_normalized_for_the_teacher():
    student, teacher = student_of(), teacher_of()
    found = [
        Distillation(teacher, "soft").batches(pipelines.train, student)[0][1]
        for pipelines in (
            kv.data.pipelines(PHOTOS, student, 4, validation_split=0, pixels=pixels)
            for pixels in (False, True)
        )
    ]
    close(found[0]["teacher"], found[1]["teacher"])


@pytest.mark.backend_free
@pytest.mark.parametrize("head,name", (("one", "teacher"), ("token", "head_dist")))
def test_a_recipe_that_distils(head, name, tmp_path):
    model = student_of(head)
    settings = {"distillation": "soft", "temperature": 2.0, "distillation_weight": 0.3}
    options = {"mixup": 0.8, "output": tmp_path, **settings, **SHORT}
    history = kv.fit(model, PHOTOS, teacher=teacher_of(), **options).history
    assert model.loss.weights == {"head": 0.7, name: 0.3}
    assert model.loss.losses[name].temperature == 2
    assert settings.items() <= run_of(tmp_path)["recipe"].items()
    # The file needs no teacher, and its validation loss is that of the labels.
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    images = kv.preprocess_input(PHOTOS[0][:5], loaded)
    close(array(loaded(images)), array(model(images)))
    measured = kv.evaluate(loaded, kv.data.load_dataset(PHOTOS, validation_split=0.1), "validation")
    assert measured["loss"] == pytest.approx(history["val_loss"][best_of(history)], rel=1e-4)


@pytest.mark.backend_free
def test_tensors_of_a_loader_come_again_and_again():
    """A `tf.data.Dataset` or a PyTorch `DataLoader` has tensors of its own."""
    loader = [tuple(map(keras.ops.convert_to_tensor, Given()[index])) for index in range(2)]
    stream = Distillation(teacher_of()).batches(loader, student_of()).stream()
    for index in (0, 1, 0):
        np.testing.assert_array_equal(next(stream)[0], array(loader[index][0]))


@pytest.mark.backend_free
def test_a_loss_compiled_by_name():
    model = student_of()
    model.compile("sgd", "sparse_categorical_crossentropy")
    options = {"epochs": 1, "warmup_epochs": 0, "verbose": 0}
    kv.fit(model, PHOTOS, teacher=teacher_of(), **options)
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.loss.losses.keys() == {"head", "teacher"}


def test_a_teacher_of_other_names(tmp_path):
    path, teacher = named(tmp_path / "data.npz", *PHOTOS, tuple("abcd")), teacher_of()
    for teacher.class_names in (tuple("abcd"), tuple("0123")):
        kv.fit(student_of(), path, teacher=teacher, **SHORT)
    teacher.class_names = tuple("bacd")
    with pytest.raises(ValueError, match=r"in order: \('a', 'b', 'c', .*Received: \('b', 'a', 'c'"):
        kv.fit(student_of(), path, teacher=teacher, **SHORT)
