"""What a classifier is trained for, as its outputs and the labels determine: loss and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vitx.checks import check
from keras_vitx.losses import SigmoidCrossentropy, SmoothedCrossentropy
from keras_vitx.outputs import Outputs

TaskKind = Literal["classes", "distributions", "binary", "multi-label", "regression"]


@dataclass(frozen=True)
class Task:
    """A kind of task, with its loss and metrics.

    | kind | head | labels | loss |
    |---|---|---|---|
    | `"classes"` | softmax, logits | integers `(n,)` or `(n, 1)` | cross entropy |
    | `"distributions"` | softmax, logits | one-hot or soft `(n, classes)` | cross entropy |
    | `"classes"` | sigmoid | integers | binary cross entropy of the one-hot labels |
    | `"multi-label"` | sigmoid | `(n, classes)` in 0..1 | binary cross entropy |
    | `"binary"` | sigmoid, one output | 0 or 1, `(n,)` or `(n, 1)` | binary cross entropy |
    | `"regression"` | linear | floats, `(n, outputs)`, or `(n,)` for one | squared error |
    """

    kind: TaskKind
    outputs: Outputs

    def loss(
        self, label_smoothing: float = 0.0, class_weight: Sequence[float] | None = None
    ) -> keras.losses.Loss:
        """Return the loss; the one of evaluation has no label smoothing and no class weights."""
        if self.kind == "regression":
            return keras.losses.MeanSquaredError(name="squared_error")
        if self.outputs.kind == "sigmoid":
            return SigmoidCrossentropy(label_smoothing, class_weight=class_weight)
        return SmoothedCrossentropy(label_smoothing, from_logits=self.outputs.from_logits)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Return new metrics, with more than five classes also the top-5 accuracy."""
        metrics = keras.metrics
        names = {"multi-label": "binary_accuracy", "regression": "mean_absolute_error"}
        name = names.get(self.kind, "accuracy")
        accuracy, top_k = {
            "classes": (metrics.SparseCategoricalAccuracy, metrics.SparseTopKCategoricalAccuracy),
            "distributions": (metrics.CategoricalAccuracy, metrics.TopKCategoricalAccuracy),
            "binary": (metrics.BinaryAccuracy, None),
            "multi-label": (metrics.BinaryAccuracy, None),
            "regression": (metrics.MeanAbsoluteError, None),
        }[self.kind]
        has_top_5 = top_k is not None and self.outputs.classes > 5
        return [accuracy(name), *([top_k(5, "top_5_accuracy")] if has_top_5 else [])]


def task_of(outputs: Outputs, labels: ArrayLike) -> Task:
    """Return the task of a batch of labels; a ValueError if they don't fit the outputs."""
    labels, classes = np.asarray(labels), outputs.classes
    integral = labels.dtype.kind in "iub" or bool((labels == np.floor(labels)).all())
    in_unit = bool((labels >= 0).all() and (labels <= 1).all())
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and classes == 1:
        if outputs.kind == "sigmoid" and in_unit:
            return Task("binary", outputs)
        if outputs.kind == "logits" and labels.dtype.kind == "f":
            return Task("regression", outputs)
    elif labels.ndim == 1 and integral:
        rule = f"Labels must be in 0..{classes - 1}, one per output; of regression, floats, with "
        rule += "classes=1 and classifier_activation=None."
        is_class = labels.min() >= 0 and labels.max() < classes
        check(is_class, rule, f"{labels.min():.0f}..{labels.max():.0f}")
        return Task("classes", outputs)
    elif labels.ndim == 2 and labels.shape[1] == classes:
        if outputs.kind == "sigmoid" and in_unit:
            return Task("multi-label", outputs)
        sums_to_one = in_unit and bool(np.allclose(labels.sum(-1), 1, atol=1e-3))
        if outputs.kind != "sigmoid" and sums_to_one:
            return Task("distributions", outputs)
        if outputs.kind == "logits" and not (integral and in_unit):
            return Task("regression", outputs)
    raise ValueError(
        f"A head of {classes} outputs ({outputs.kind}) and labels of shape {labels.shape} "
        f"({labels.dtype}, from {labels.min():g} to {labels.max():g}) do not determine a task. "
        "Expected: softmax or logits with integers or rows that sum to 1; sigmoid with rows of 0 "
        "and 1 (several labels per image); a linear head with other floats. Create the model with "
        'classifier_activation="softmax", "sigmoid" or None (linear), or compile it before `fit`.'
    )
