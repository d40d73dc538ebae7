import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, numbers

import keras_vitx as kv
from keras_vitx.layers import DenseHead, DistilledHead
from keras_vitx.models import Chain
from keras_vitx.training import Distillation, SmoothedCrossentropy
from keras_vitx.training.devices import Devices, replicas
from keras_vitx.training.devices.replicas import share_of

SHAPE = (2, 4, 3)
SMOOTHING, TAU = 0.1, 3.0
IMAGES = numbers((6, *SHAPE))
SOFT = np.random.default_rng(1).dirichlet(np.ones(4), 6).astype("float32")
LABELS = {"mixed": SOFT, "integers": np.array([0, 1, 2, 3, 3, 0])}
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
    teacher = keras.Sequential(
        [keras.Input((*size, channels)), pool, keras.layers.Dense(classes, activation)]
    )
    if preprocessing is not None:
        teacher.preprocessing = preprocessing
    return teacher


class Given(keras.utils.PyDataset):
    """Two batches, or the same with weights."""

    def __init__(self, labels, weights=None):
        super().__init__()
        self.arrays = IMAGES, labels, *([] if weights is None else [weights])
        self.epoch = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return tuple(array[3 * index : 3 * index + 3] for array in self.arrays)

    def on_epoch_end(self):
        self.epoch += 1


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kind", ("hard", "soft"))
@pytest.mark.parametrize("head,activation", (("one", None), ("token", "softmax")))
def test_loss_and_gradients(head, activation, kind, labels):
    """One step of SGD, against the formulas of the papers for a linear student."""
    student, teacher = student_of(head, activation), teacher_of(activation=activation)
    distillation = Distillation(teacher, kind, TAU)
    weight = {"hard": 0.5, "soft": 0.1}[kind]

    y = np.eye(4)[LABELS[labels]] if labels == "integers" else SOFT
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

    student.compile(
        keras.optimizers.SGD(1.0),
        distillation.loss(student, SmoothedCrossentropy(SMOOTHING, not activation)),
    )
    batches = distillation.batches(Given(LABELS[labels]), student)
    found = student.train_on_batch(IMAGES, batches.changed(IMAGES, LABELS[labels], 0)[1])
    close(found, loss)
    for dense, old, gradient in zip(denses, before, gradients, strict=True):
        assert np.abs(gradient).max() > 1e-3
        close(old - array(dense.kernel.value), gradient, 1e-4)


@pytest.mark.backend_free
@pytest.mark.parametrize("size", (SHAPE[:2], (4, 8), (None, None)))
@pytest.mark.parametrize("preprocessing", (OURS, THEIRS, "function"))
def test_what_the_teacher_sees(size, preprocessing):
    """The images of the batch, as its own preprocessing would prepare them."""
    seen = []

    def prepared(images):
        seen.append(images)
        return images / 100 - 1

    teacher = teacher_of(
        size, preprocessing=prepared if preprocessing == "function" else preprocessing
    )
    batches = Distillation(teacher, "soft").batches(Given(SOFT), student_of())
    images, labels = batches[1]
    np.testing.assert_array_equal(images, IMAGES[3:])
    np.testing.assert_array_equal(labels["head"], SOFT[3:])
    pixels = images * np.float32(OURS.std) + np.float32(OURS.mean)
    if size == (4, 8):
        pixels = array(keras.ops.image.resize(pixels, size, "bicubic", antialias=True))
    if preprocessing == "function":
        close(seen[-1], 255 * pixels, 1e-4)
        expected = 255 * pixels / 100 - 1
    else:
        expected = (pixels - np.float32(preprocessing.mean)) / np.float32(preprocessing.std)
    close(labels["teacher"], softmax(array(teacher(expected.astype("float32")))), 1e-4)
    np.testing.assert_allclose(labels["teacher"].sum(-1), 1, rtol=1e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize("activation", (None, "softmax"))
def test_logits_or_probabilities(activation):
    teacher = teacher_of(activation=activation)
    answers = array(teacher(IMAGES))
    student = student_of("token")
    hard = Distillation(teacher).batches(Given(SOFT, np.ones(6)), student)
    _, labels, weights = hard[0]
    np.testing.assert_array_equal(labels["head_dist"], answers[:3].argmax(-1))
    np.testing.assert_array_equal(weights, np.ones(3))
    soft = Distillation(teacher, "soft").batches(Given(SOFT), student)
    close(soft[0][1]["head_dist"], answers[:3] if activation else softmax(answers[:3]))


@pytest.mark.parametrize("head,name", (("one", "teacher"), ("token", "head_dist")))
def test_fit_learns_from_a_teacher_that_contradicts_the_labels(head, name):
    """With weight 1 the labels are ignored; accuracy is still measured on them."""
    student, teacher = student_of(head), teacher_of((4, 8), preprocessing=THEIRS)
    distillation = Distillation(teacher, weight=1.0)
    student.compile(keras.optimizers.Adam(0.3), distillation.loss(student), metrics=["accuracy"])
    batches = distillation.batches(Given(LABELS["integers"]), student)
    said = np.concatenate([batches[index][1][name] for index in range(2)])
    assert (said != LABELS["integers"]).any()
    history = student.fit(
        batches,
        validation_data=(IMAGES, LABELS["integers"]),
        epochs=12,
        verbose=0,
    ).history
    assert history["loss"][-1] < 0.1
    if head == "one":
        np.testing.assert_array_equal(array(student(IMAGES)).argmax(-1), said)
        assert history["accuracy"][-1] == pytest.approx((said == LABELS["integers"]).mean())
    # The validation loss is the plain cross entropy of the labels.
    outputs = softmax(array(student(IMAGES)))
    expected = -np.log(outputs[np.arange(6), LABELS["integers"]]).mean()
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-4)
    assert batches.epoch == batches.batches.epoch >= 12


@pytest.mark.backend_free
def test_iterables_come_in_turn():
    """A `tf.data.Dataset` or a PyTorch `DataLoader` has no indices, and tensors of its own."""
    loader = [tuple(map(keras.ops.convert_to_tensor, Given(SOFT)[index])) for index in range(2)]
    batches = Distillation(teacher_of()).batches(loader, student_of())
    assert len(batches) == batches.num_batches == 2
    found = [batches[index][0] for index in (0, 0, 5)]
    for images, expected in zip(found, (0, 1, 0), strict=True):
        np.testing.assert_array_equal(images, array(loader[expected][0]))
    assert [len(batch) for batch in batches] == [2, 2]
    with pytest.raises(ValueError, match="exhausted"):
        exhausted = Distillation(teacher_of()).batches(iter(loader), student_of())
        _ = [exhausted[index] for index in range(3)]
    endless = Distillation(teacher_of()).batches(map(abs, loader), student_of())
    assert endless.num_batches is None


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's strategies split batches")
def test_a_process_asks_the_teacher_about_its_own_images(monkeypatch):
    here = Devices(count=3, replicas=3, processes=3, process=1)
    monkeypatch.setattr(replicas, "in_use", lambda: here)
    student, asked = student_of(), []
    batches = Distillation(teacher_of()).batches(Given(SOFT), student)
    teach = batches.teach
    batches.teach = lambda images: asked.append(len(images)) or teach(images)
    images, labels = share_of(batches)[1]
    assert asked == [1]
    np.testing.assert_array_equal(images, IMAGES[4:5])
    np.testing.assert_array_equal(labels["head"], SOFT[4:5])
    np.testing.assert_array_equal(labels["teacher"], batches[1][1]["teacher"][1:2])
    assert len(share_of(batches)) == 2 and asked == [1, 3]


@pytest.mark.backend_free
def test_a_subclassed_teacher():
    class Subclassed(keras.Model):
        def call(self, images):
            return inner(images)

    inner, teacher = teacher_of(), Subclassed()
    teacher.preprocessing = OURS
    labels = Distillation(teacher).batches(Given(SOFT), student_of())[0][1]
    np.testing.assert_array_equal(labels["teacher"], array(inner(IMAGES)).argmax(-1)[:3])
    with pytest.raises(ValueError, match=r"`teacher`: .*functional"):
        Distillation(teacher, "soft").batches(Given(SOFT), student_of())
    teacher, inner = Subclassed(), teacher_of(classes=5)
    teacher.preprocessing = OURS
    with pytest.raises(ValueError, match=r"Received: \(1, 5\)"):
        Distillation(teacher).batches(Given(SOFT), student_of())


WRONG = {
    "classes": ({"classes": 5}, "one", r"student's 4 classes. Received: \(None, 5\)"),
    "outputs": ({}, "one", r"one output \(batch, 4\).*\[\(None, 4\), \(None, 4\)\]"),
    "channels": ({"channels": 1}, "one", "student's 3 channels"),
    "proportions": ({"size": (8, 8)}, "one", r"\(2, 4\)\. Received: \(8, 8\)"),
    "preprocessing": ({"preprocessing": None}, "one", "`teacher` must have a `preprocessing`"),
    "sigmoid": ({"activation": "sigmoid"}, "one", "`teacher` must return logits or a softmax"),
    "patches": ({}, "patches", "`student` must have one classifier"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("case", WRONG)
def test_a_teacher_that_does_not_fit(case):
    arguments, head, message = WRONG[case]
    teacher = teacher_of(**arguments)
    if case == "outputs":
        teacher = keras.Model(teacher.inputs, [teacher.outputs[0], teacher.outputs[0]])
        teacher.preprocessing = OURS
    with pytest.raises(ValueError, match=message):
        Distillation(teacher, "soft").batches(Given(SOFT), student_of(head))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "make,message",
    (
        (lambda: Distillation("RegNetY"), "`teacher` must be a Keras model.*'RegNetY'"),
        (lambda: Distillation(teacher_of(), "medium"), "`kind`.*'medium'"),
        (lambda: Distillation(teacher_of(), temperature=0), "`temperature`.*0"),
        (lambda: Distillation(teacher_of(), weight=1.5), r"`weight` must be in \[0, 1\].*1.5"),
        (lambda: Distillation(teacher_of()).loss(teacher_of()), "student.*as_chain"),
    ),
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
