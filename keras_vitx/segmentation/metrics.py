"""Intersection over union: a Keras metric, and the metrics of counts of pixels."""

from typing import Any

import keras
import numpy as np
from keras import ops

IGNORED = 255
"""The label of pixels that do not count in the loss and the metrics."""


@keras.saving.register_keras_serializable(package="keras_vitx")
class MeanIoU(keras.metrics.MeanIoU):
    """Keras's mean intersection over union, with its counts as one product of matrices.

    Under PyTorch, Keras's runs a loop over the pixels, and waits for the device at each. The
    arguments are Keras's. For logits `(batch, height, width, classes)` and integer masks,
    `MeanIoU(classes, ignore_class=255, sparse_y_pred=False, name="mean_iou")`.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        if not self.sparse_y_true:
            y_true = ops.argmax(y_true, axis=self.axis)
        if not self.sparse_y_pred:
            y_pred = ops.argmax(y_pred, axis=self.axis)
        y_true, y_pred = ops.cast(y_true, "int32"), ops.cast(y_pred, "int32")
        if self.ignore_class is not None:  # -1 equals no class.
            y_true = ops.where(ops.equal(y_true, self.ignore_class), -1, y_true)
        classes = ops.arange(self.num_classes, dtype="int32")
        # Float32 is exact up to 16 million pixels per batch.
        true, predicted = (
            ops.cast(ops.equal(ops.reshape(y, (-1, 1)), classes), "float32")
            for y in (y_true, y_pred)
        )
        if sample_weight is not None:
            weight = ops.broadcast_to(ops.cast(sample_weight, self.dtype), ops.shape(y_pred))
            true = true * ops.cast(ops.reshape(weight, (-1, 1)), "float32")
        counts = ops.matmul(ops.transpose(true), predicted)
        self.total_cm.assign_add(ops.cast(counts, self.dtype))

    def result(self):
        counts = ops.cast(self.total_cm, "float32")
        correct = ops.diag(counts)
        union = ops.sum(counts, axis=0) + ops.sum(counts, axis=1) - correct
        occurring = ops.sum(ops.cast(union > 0, "float32"))
        return ops.sum(correct / ops.maximum(union, 1.0)) / ops.maximum(occurring, 1.0)


def confusion(mask: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the numbers of pixels by true (rows) and predicted class, without ignored ones."""
    labeled = mask != IGNORED
    pairs = mask[labeled].astype("int64") * classes + predicted[labeled]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def metrics_of(counts: np.ndarray) -> dict[str, Any]:
    """Return the metrics of `evaluate` from the sum of the counts."""
    correct, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    if not true.any():
        raise ValueError("`pairs` must have a pixel that is not ignored. Received: none.")
    with np.errstate(invalid="ignore"):
        iou = correct / (true + predicted - correct)
        recall = correct / true
    return {
        "mean_iou": float(np.nanmean(iou)),
        "accuracy": float(correct.sum() / true.sum()),
        "mean_accuracy": float(np.nanmean(recall)),
        "iou": iou,
    }
