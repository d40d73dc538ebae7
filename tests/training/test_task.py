"""The task follows from the head and the labels."""

import numpy as np
import pytest
from harness import array, close

from keras_vitx.outputs import Outputs, task_of

INTEGERS = np.array([0, 2, 1, 2])
ONE_HOT = np.eye(3)[INTEGERS]
SOFT = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
SEVERAL = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]])
FLOATS = np.array([[0.2, -1.3, 7.5], [1.0, 0.0, 2.0]])

CASES = [
    ("softmax", 3, INTEGERS, "classes"),
    ("logits", 3, INTEGERS[:, None].astype("float32"), "classes"),
    ("sigmoid", 3, INTEGERS, "classes"),
    ("softmax", 3, ONE_HOT, "distributions"),
    ("logits", 3, SOFT, "distributions"),
    ("sigmoid", 3, SEVERAL, "multi-label"),
    ("sigmoid", 3, ONE_HOT, "multi-label"),
    ("sigmoid", 1, np.array([0, 1, 1]), "binary"),
    ("sigmoid", 1, np.array([[0.0], [1.0]]), "binary"),
    ("logits", 3, FLOATS, "regression"),
    ("logits", 1, np.array([23.0, 41.0]), "regression"),
    ("logits", 1, np.array([[0.0], [1.0]]), "regression"),
]
WRONG = [
    ("softmax", 3, SEVERAL, "classifier_activation="),
    ("softmax", 3, FLOATS, "classifier_activation="),
    ("logits", 3, SEVERAL, "classifier_activation="),
    ("logits", 1, np.array([0, 1, 1]), "classifier_activation="),
    ("softmax", 3, np.array([0.5, 1.2]), "classifier_activation="),
    ("sigmoid", 3, FLOATS, "classifier_activation="),
    ("softmax", 4, ONE_HOT, "classifier_activation="),
    ("softmax", 2, INTEGERS, r"0\.\.1.*0\.\.2"),
]


@pytest.mark.parametrize(("kind", "classes", "labels", "message"), WRONG)
def test_labels_that_determine_no_task(kind, classes, labels, message):
    with pytest.raises(ValueError, match=message):
        task_of(Outputs(kind, classes), labels)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_the_task_its_loss_and_its_metrics(case):
    kind, classes, labels, expected = case
    task = task_of(Outputs(kind, classes), labels)
    assert task.kind == expected
    targets = np.reshape(labels, (len(labels), -1)).astype("float32")
    if expected == "classes":
        targets = np.eye(classes, dtype="float32")[targets[:, 0].astype(int)]
    for smoothing in (0.0, 0.2):
        smoothed = targets * (1 - smoothing) + smoothing / (2 if kind == "sigmoid" else classes)
        outputs = np.random.default_rng(0).uniform(0.1, 0.9, targets.shape).astype("float32")
        probabilities = outputs
        if kind == "logits":
            probabilities = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
        elif kind == "softmax":
            outputs = probabilities = outputs / outputs.sum(-1, keepdims=True)
        if expected == "regression":
            loss = (outputs - targets) ** 2
        elif kind == "sigmoid":
            log = np.log(probabilities), np.log(1 - probabilities)
            loss = -smoothed * log[0] - (1 - smoothed) * log[1]
        else:
            loss = -classes * smoothed * np.log(probabilities)
        close(array(task.loss(smoothing)(labels, outputs)), loss.mean())
    for metric in task.metrics():
        metric.update_state(labels, targets)
        assert float(metric.result()) == (0 if metric.name == "mean_absolute_error" else 1)


def test_accuracy_among_five():
    for labels in (np.array([0, 5]), np.eye(6)[[0, 5]]):
        names = [m.name for m in task_of(Outputs("softmax", 6), labels).metrics(top_5=True)]
        assert names == ["accuracy", "top_5_accuracy"]
    assert len(task_of(Outputs("softmax", 3), INTEGERS).metrics(top_5=True)) == 1
