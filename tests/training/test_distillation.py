import json

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, numbers

import keras_vitx as kv
from keras_vitx.layers import DenseHead, DistilledHead
from keras_vitx.models import Chain
from keras_vitx.training import Distillation, SmoothedCrossentropy
from keras_vitx.training.devices import Devices, replicas
from keras_vitx.training.devices.replicas import shard_of

SHAPE = (2, 4, 3)
SMOOTHING, TAU = 0.1, 3.0
IMAGES = numbers((6, *SHAPE))
SOFT = np.random.default_rng(1).dirichlet(np.ones(4), 6).astype("float32")
INTEGERS = np.array([0, 1, 2, 3, 3, 0])
OURS = kv.Preprocessing((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
THEIRS = kv.Preprocessing((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def student_of(head="one", activation=None):
    """A linear student, whose gradients are known in closed form."""
    keras.utils.set_random_seed(0)
    heads = {
        "one": lambda: keras.layers.Dense(4, activation, name="head"),
        "token": lambda: DistilledHead(4, activation, name="head"),
        "patches": lambda: DenseHead(4, activation, name="head"),
    }
    shape = (-1,) if head == "one" else (-1, 12)
    layers = [keras.layers.Reshape(shape), heads[head]()]
    return Chain(layers, SHAPE, preprocessing=OURS)


def teacher_of(size=SHAPE[:2], classes=4, activation=None, preprocessing=OURS, channels=3):
    """A teacher that reads every pixel."""
    keras.utils.set_random_seed(5)
    pool = keras.layers.Flatten() if None not in size else keras.layers.GlobalAveragePooling2D()
    images = keras.Input((*size, channels))
    layers = [images, pool, keras.layers.Dense(classes, activation)]
    teacher = keras.Sequential(layers, name="the_teacher")
    if preprocessing is not None:
        teacher.preprocessing = preprocessing
    return teacher


class Given(keras.utils.PyDataset):
    """Two batches of images, labels and weights."""

    def __init__(self, labels=SOFT):
        super().__init__()
        self.arrays = IMAGES, labels, np.arange(6, dtype="float32")

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return tuple(array[3 * index : 3 * index + 3] for array in self.arrays)


@pytest.mark.parametrize("labels", ("mixed", "integers"))
@pytest.mark.parametrize("kind", ("hard", "soft"))
@pytest.mark.parametrize("head,activation", (("one", None), ("token", "softmax")))
def test_loss_and_gradients(head, activation, kind, labels):
    """One step of SGD, against the formulas of the papers for a linear student."""
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
    batches = distillation.batches([(IMAGES, given)], student)
    found = student.train_on_batch(*batches[0])
    close(found, loss)
    for dense, old, gradient in zip(denses, before, gradients, strict=True):
        assert np.abs(gradient).max() > 1e-3
        close(old - array(dense.kernel.value), gradient, 1e-4)


@pytest.mark.backend_free
@pytest.mark.parametrize("size", (SHAPE[:2], (4, 8), (None, None)))
@pytest.mark.parametrize("preprocessing", (OURS, THEIRS, "function"))
def test_what_the_teacher_sees(size, preprocessing):
    """The images of the batch, as its own preprocessing would prepare them."""
    own = preprocessing if preprocessing != "function" else lambda images: images / 100 - 1
    teacher = teacher_of(size, preprocessing=own)
    batches = Distillation(teacher, "soft").batches(Given(), student_of())
    images, labels, weights = batches[1]
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


@pytest.mark.parametrize("head,name", (("one", "teacher"), ("token", "head_dist")))
def test_fit_learns_from_a_teacher_that_contradicts_the_labels(head, name):
    """With weight 1 the labels are ignored; accuracy and validation are still theirs."""
    student, teacher = student_of(head), teacher_of((4, 8), preprocessing=THEIRS)
    distillation = Distillation(teacher, weight=1.0)
    student.compile(keras.optimizers.Adam(0.3), distillation.loss(student), metrics=["accuracy"])
    batches = distillation.batches([(IMAGES, INTEGERS)], student)
    said = batches[0][1][name]
    right = (said == INTEGERS).mean()
    assert right < 1
    history = student.fit(batches, validation_data=(IMAGES, INTEGERS), epochs=20, verbose=0).history
    assert history["loss"][-1] < 0.1
    if head == "one":
        np.testing.assert_array_equal(array(student(IMAGES)).argmax(-1), said)
        assert history["accuracy"][-1] == pytest.approx(right)
    outputs = softmax(array(student(IMAGES)))
    expected = -np.log(outputs[np.arange(6), INTEGERS]).mean()
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-4)


PHOTOS = np.random.default_rng(0).integers(0, 256, (36, *SHAPE), "uint8"), np.arange(36) % 4
SHORT = {"epochs": 2, "batch_size": 9, "warmup_epochs": 0, "augmentation": None, "verbose": 0}


@pytest.mark.backend_free
@pytest.mark.parametrize("head,name", (("one", "teacher"), ("token", "head_dist")))
def test_a_recipe_that_distils(head, name, tmp_path):
    model = student_of(head)
    settings = {"distillation": "soft", "temperature": 2.0, "distillation_weight": 0.3}
    history = kv.fit(
        model, PHOTOS, teacher=teacher_of(), mixup=0.8, output=tmp_path, **settings, **SHORT
    ).history
    assert model.loss.weights == {"head": 0.7, name: 0.3}
    assert model.loss.losses["head"].label_smoothing == 0.1
    assert model.loss.losses[name].temperature == 2
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["teacher"] == "the_teacher"
    assert settings.items() <= record["recipe"]["targets"].items()
    # The file needs no teacher, and its validation loss is that of the labels.
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    images = kv.preprocess_input(PHOTOS[0][:5], loaded)
    close(array(loaded(images)), array(model(images)))
    measured = kv.evaluate(loaded, PHOTOS, "validation", validation_split=0.1)
    best = int(np.lexsort([history["val_loss"], -np.array(history["val_accuracy"])])[0])
    assert measured["loss"] == pytest.approx(history["val_loss"][best], rel=1e-4)


@pytest.mark.backend_free
def test_iterables_come_in_turn():
    """A `tf.data.Dataset` or a PyTorch `DataLoader` has no indices, and tensors of its own."""
    loader = [tuple(map(keras.ops.convert_to_tensor, Given()[index])) for index in range(2)]

    def taught(batches):
        return Distillation(teacher_of()).batches(batches, student_of())

    batches = taught(loader)
    assert len(batches) == batches.num_batches == 2
    found = [batches[index][0] for index in (0, 0, 5)]
    for images, expected in zip(found, (0, 1, 0), strict=True):
        np.testing.assert_array_equal(images, array(loader[expected][0]))
    assert [len(batch) for batch in batches] == [3, 3]
    exhausted = taught(iter(loader))
    assert exhausted.num_batches is None
    with pytest.raises(ValueError, match="exhausted"):
        _ = [exhausted[index] for index in range(3)]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's strategies split batches")
def test_a_process_asks_the_teacher_about_its_own_images(monkeypatch):
    here = Devices(count=3, replicas=3, processes=3, process=1)
    monkeypatch.setattr(replicas, "in_use", lambda: here)
    teacher = teacher_of()
    batches = Distillation(teacher).batches(Given(), student_of())
    predict, asked = teacher.predict_on_batch, []
    teacher.predict_on_batch = lambda images: asked.append(len(images)) or predict(images)
    images, labels, _ = shard_of(batches)[1]
    assert asked == [1]
    np.testing.assert_array_equal(images, IMAGES[4:5])
    np.testing.assert_array_equal(labels["head"], SOFT[4:5])
    np.testing.assert_array_equal(labels["teacher"], batches[1][1]["teacher"][1:2])


@pytest.mark.backend_free
def test_a_subclassed_teacher():
    class Subclassed(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.preprocessing = inner, OURS

        def call(self, images):
            return self.inner(images)

    inner = teacher_of()
    labels = Distillation(Subclassed(inner)).batches(Given(), student_of())[0][1]
    np.testing.assert_array_equal(labels["teacher"], array(inner(IMAGES)).argmax(-1)[:3])
    with pytest.raises(ValueError, match=r"`teacher`: .*functional"):
        Distillation(Subclassed(inner), "soft").batches(Given(), student_of())
    with pytest.raises(ValueError, match=r"Received: \(1, 5\)"):
        Distillation(Subclassed(teacher_of(classes=5))).batches(Given(), student_of())


def two_outputs():
    teacher = teacher_of()
    teacher = keras.Model(teacher.inputs, [teacher.outputs[0]] * 2)
    teacher.preprocessing = OURS
    return teacher


def batches_of(head="one", **teacher):
    return Distillation(teacher_of(**teacher), "soft").batches(Given(), student_of(head))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "make,message",
    (
        (lambda: Distillation("RegNetY"), "`teacher` must be a Keras model.*'RegNetY'"),
        (lambda: Distillation(teacher_of(), "medium"), "`kind`.*'medium'"),
        (lambda: Distillation(teacher_of(), temperature=0), "`temperature`.*0"),
        (lambda: Distillation(teacher_of(), weight=1.5), r"`weight` must be in \[0, 1\].*1.5"),
        (lambda: Distillation(teacher_of()).loss(teacher_of()), "student.*as_chain"),
        (lambda: batches_of(classes=5), r"student's 4 classes. Received: \(None, 5\)"),
        (lambda: batches_of(channels=1), "student's 3 channels"),
        (lambda: batches_of(size=(8, 8)), r"\(2, 4\)\. Received: \(8, 8\)"),
        (lambda: batches_of(preprocessing=None), "`teacher` must have a `preprocessing`"),
        (lambda: batches_of(activation="sigmoid"), "`teacher` must return logits or a softmax"),
        (lambda: batches_of("patches"), "`student` must have one classifier"),
        (
            lambda: Distillation(two_outputs()).batches(Given(), student_of()),
            r"one output \(batch, 4\).*\[\(None, 4\), \(None, 4\)\]",
        ),
        (
            lambda: kv.fit(student_of(), PHOTOS, distillation="hard", **SHORT),
            "`teacher` must be a model",
        ),
        (
            lambda: kv.fit(
                student_of(), PHOTOS, teacher=teacher_of(), class_weight={0: 2}, **SHORT
            ),
            "`class_weight` must be None",
        ),
    ),
)
def test_a_teacher_that_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.backend_free
def test_a_teacher_of_other_names(tmp_path):
    images, labels = PHOTOS
    names = ("a", "b", "c", "d")
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, class_names=names)
    teacher = teacher_of()
    for teacher.class_names in (names, ("0", "1", "2", "3")):
        kv.fit(student_of(), tmp_path / "data.npz", teacher=teacher, **SHORT)
    teacher.class_names = ("b", "a", "c", "d")
    with pytest.raises(ValueError, match=r"same order, \(a, b, c, .*Received: \(b, a, c"):
        kv.fit(student_of(), tmp_path / "data.npz", teacher=teacher, **SHORT)
