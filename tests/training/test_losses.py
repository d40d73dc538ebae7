"""The losses against their formulas, and the task that a head and labels determine."""

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close, numbers, softmax

from keras_vitx.losses import PerHead, SigmoidCrossentropy, SmoothedCrossentropy, SoftDistillation
from keras_vitx.outputs import Outputs
from keras_vitx.training.task import task_of

CLASSES = np.array([[0, 1, 2], [3, 3, 0]])


def once(*values):
    """Values that are the same to every backend."""
    return [pytest.param(value, marks=pytest.mark.backend_free) for value in values]


SOFT = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3))


@pytest.mark.parametrize("smoothing", (0.1, *once(0.0, 0.6)))
@pytest.mark.parametrize("from_logits", (False, True))
@pytest.mark.parametrize("labels", ("classes", "columns", "patches", "soft"))
def test_smoothed_crossentropy(smoothing, from_logits, labels):
    logits, target = numbers((2, 3, 4)), SOFT if labels == "soft" else np.eye(4)[CLASSES]
    targets = target * (1 - smoothing) + smoothing / 4
    expected = (-targets * np.log(softmax(logits))).sum(-1).mean()
    if labels in ("classes", "columns"):  # One prediction per image.
        logits = logits.reshape(6, 4)
    given = {"classes": CLASSES.reshape(6), "columns": CLASSES.reshape(6, 1), "soft": SOFT}
    loss = SmoothedCrossentropy(smoothing, from_logits=from_logits)
    found = loss(given.get(labels, CLASSES), logits if from_logits else softmax(logits))
    close(array(found), expected)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_a_label_of_tiny_probability_has_a_gradient(kind):
    """As large as by logits, where Keras clips the probability at 1e-7."""
    logits = np.array([[30.0, 0.0, 1.0]]) if kind == "softmax" else np.array([[3.0, -30.0, 1.0]])
    model = keras.Sequential([keras.Input((1,)), layer := keras.layers.Dense(3, kind)])
    layer.kernel.assign(logits)
    loss = SmoothedCrossentropy() if kind == "softmax" else SigmoidCrossentropy()
    model.compile(keras.optimizers.SGD(1.0), loss)
    target = np.array([[0.0, 1.0, 0.0]])
    model.train_on_batch(np.ones((1, 1)), target)
    gradient = (1 / (1 + np.exp(-logits)) - target) / 3
    gradient = softmax(logits) - target if kind == "softmax" else gradient
    close(array(layer.bias), -gradient[0], 1e-4)


@pytest.mark.skipif(BACKEND == "jax", reason="a layer's outputs have no attributes there")
def test_a_sigmoid_layer_trains_on_logits():
    """Above a logit of 17, its probability in float32 is 1, whose gradient is 0."""
    model = keras.Sequential([keras.Input((4,)), layer := keras.layers.Dense(3, "sigmoid")])
    before = np.array([40.0, -40.0, 20.0])
    layer.kernel.assign(np.zeros((4, 3)))
    layer.bias.assign(before)
    model.compile(keras.optimizers.SGD(3.0), SigmoidCrossentropy())
    logs = model.fit(np.ones((2, 4)), np.array([[0.0, 1.0, 1.0]] * 2), verbose=0).history
    close(logs["loss"], [80 / 3])
    close(array(layer.bias), before - [1, -1, 0])


@pytest.mark.parametrize("temperature", (3.0, *once(0.5, 1.0)))
@pytest.mark.parametrize("from_logits", (False, True))
def test_soft_distillation(temperature, from_logits):
    student, teacher = numbers((6, 4)), numbers((6, 4), seed=1)
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    expected = temperature**2 * (p * np.log(p / q)).sum(-1).mean()
    loss = SoftDistillation(temperature, from_logits=from_logits)
    close(array(loss(softmax(teacher), student if from_logits else softmax(student))), expected)
    assert float(array(loss(softmax(teacher), teacher if from_logits else softmax(teacher)))) < 1e-5
    # A fully confident teacher has zero probabilities.
    assert np.isfinite(array(loss(np.eye(4)[[0, 1, 2, 3, 0, 1]], np.eye(4)[[1, 1, 2, 3, 0, 1]])))


@pytest.mark.parametrize(
    "loss",
    (
        SmoothedCrossentropy(0.2, from_logits=True, name="mine"),
        SigmoidCrossentropy(0.2),
        PerHead({"head": SmoothedCrossentropy(0.2), "other": SoftDistillation(2.0)}, {"head": 0.9}),
    ),
)
def test_losses_are_saved(loss):
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(twin) is type(loss)
    assert twin.get_config() == loss.get_config()
    labels, outputs = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.2, 0.8], [0.5, 0.5]])
    close(array(twin(labels, outputs)), array(loss(labels, outputs)))


INTEGERS = np.array([0, 2, 1, 2])
ONE_HOT = np.eye(3)[INTEGERS]
SEVERAL = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]])
FLOATS = np.array([[0.2, -1.3, 7.5], [1.0, 0.0, 2.0]])
TASKS = [
    ("softmax", 3, INTEGERS, "classes"),
    ("logits", 3, INTEGERS[:, None].astype("float32"), "classes"),
    ("sigmoid", 3, INTEGERS, "classes"),
    ("softmax", 6, INTEGERS, "classes"),
    ("softmax", 3, ONE_HOT, "distributions"),
    ("logits", 3, np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), "distributions"),
    ("sigmoid", 3, SEVERAL, "multi-label"),
    ("sigmoid", 3, ONE_HOT, "multi-label"),
    ("sigmoid", 1, np.array([0, 1, 1]), "binary"),
    ("sigmoid", 1, np.array([[0.0], [1.0]]), "binary"),
    ("logits", 3, FLOATS, "regression"),
    ("logits", 1, np.array([23.0, 41.0]), "regression"),
    ("logits", 1, np.array([[0.0], [1.0]]), "regression"),
]


@pytest.mark.parametrize("case", TASKS, ids=lambda case: f"{case[0]}-{case[3]}")
def test_the_task_its_loss_and_its_metrics(case):
    kind, classes, labels, expected = case
    task = task_of(Outputs(kind, classes), labels)
    assert task.kind == expected
    targets = np.reshape(labels, (len(labels), -1)).astype("float32")
    if expected == "classes":
        targets = np.eye(classes, dtype="float32")[targets[:, 0].astype(int)]
    outputs = np.random.default_rng(0).uniform(0.1, 0.9, targets.shape).astype("float32")
    outputs = outputs / outputs.sum(-1, keepdims=True) if kind == "softmax" else outputs
    p = softmax(outputs) if kind == "logits" else outputs
    for smoothing in (0.0, 0.2):
        smoothed = targets * (1 - smoothing) + smoothing / (2 if kind == "sigmoid" else classes)
        if expected == "regression":
            loss = (outputs - targets) ** 2
        elif kind == "sigmoid":
            loss = -smoothed * np.log(p) - (1 - smoothed) * np.log(1 - p)
        else:
            loss = -classes * smoothed * np.log(p)
        close(array(task.loss(smoothing)(labels, outputs)), loss.mean())
    for metric in task.metrics():
        metric.update_state(labels, targets)
        assert float(metric.result()) == (0 if metric.name == "mean_absolute_error" else 1)
    names = [metric.name for metric in task.metrics()]
    assert ("top_5_accuracy" in names) == (classes > 5)
