"""Which classes are taken for which."""

import csv
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.files import atomic_write
from keras_vitx.text import csv_cell


@keras.saving.register_keras_serializable(package="keras_vitx")
class Confusion(keras.metrics.Metric):
    """Counts of labels and predictions; its result is the mean accuracy over the classes.

    Labels: integers `(batch,)` or `(batch, 1)`, or distributions `(batch, classes)`.
    Predictions: `(batch, classes)`; with one class, the probability of label 1.

    Args:
        classes: Number of classes.
        name: Name of the metric.
    """

    def __init__(self, classes: int, name: str = "class_accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.classes = classes
        self.counts = self.add_variable((classes, classes), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, found = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if found.shape[-1] == 1:
            found = ops.concatenate([1 - found, found], axis=-1)
        if len(labels.shape) == 2 and labels.shape[-1] != 1:
            labels = ops.argmax(labels, axis=-1)
        labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
        rows = ops.one_hot(labels, self.classes, dtype="float32")
        columns = ops.one_hot(ops.argmax(found, axis=-1), self.classes, dtype="float32")
        if sample_weight is not None:
            rows *= ops.cast(ops.reshape(sample_weight, (-1, 1)), "float32")
        self.counts.assign_add(ops.matmul(ops.transpose(rows), columns))

    def result(self):
        counts = ops.convert_to_tensor(self.counts)
        images = ops.sum(counts, axis=1)
        accuracy = ops.diagonal(counts) / ops.maximum(images, 1)
        present = ops.sum(ops.cast(images > 0, "float32"))
        return ops.sum(accuracy) / ops.maximum(present, 1)

    @property
    def matrix(self) -> np.ndarray:
        """Integers (classes, classes): images of the class of a row, by predicted class."""
        return np.rint(ops.convert_to_numpy(self.counts)).astype("int64")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes}


def per_class(matrix: np.ndarray, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per class that has images, in the order of the classes.

    Args:
        matrix: Counts (classes, classes), as `Confusion.matrix`.
        class_names: Names of the classes.

    Returns:
        Rows of `"class"`, `"images"`, `"accuracy"` (the fraction of its images that were
        predicted), `"precision"` (the fraction of the predictions that were right, None
        without predictions) and `"taken for"`, the most frequent wrong prediction, or None.
    """
    rows = []
    for index, name in enumerate(class_names):
        images, predicted = matrix[index].sum(), matrix[:, index].sum()
        if not images:
            continue
        wrong = np.where(np.arange(len(matrix)) == index, 0, matrix[index])
        rows.append(
            {
                "class": name,
                "images": int(images),
                "accuracy": float(matrix[index, index] / images),
                "precision": float(matrix[index, index] / predicted) if predicted else None,
                "taken for": class_names[int(wrong.argmax())] if wrong.any() else None,
            }
        )
    return rows


def write_per_class(
    matrix: np.ndarray, class_names: Sequence[str], path: str | os.PathLike
) -> None:
    """Write the rows of `per_class` as CSV.

    Raises:
        OSError: if the file can't be written.
    """
    rows = per_class(matrix, class_names)
    with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)
