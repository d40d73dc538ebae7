"""Intersection over union: a Keras metric, and the metrics of counts of pixels."""

from typing import Any

import keras
import numpy as np
from keras import ops

IGNORED = 255
"""The label of pixels that do not count in the loss and the metrics."""


@keras.saving.register_keras_serializable(package="keras_vitx")
class MeanIoU(keras.metrics.MeanIoU):
    """Keras's mean intersection over union, with its counts as one sum over the pixels.

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
        counted = ops.logical_and(y_true >= 0, y_true < self.num_classes)
        if self.ignore_class is not None:
            counted = ops.logical_and(counted, ops.not_equal(y_true, self.ignore_class))
        pairs = self.num_classes**2
        index = ops.where(counted, y_true * self.num_classes + y_pred, pairs)
        weight = 1.0 if sample_weight is None else ops.cast(sample_weight, "float32")
        weight = ops.broadcast_to(weight, ops.shape(index))
        # Float32 is exact up to 16 million pixels per batch. The last sum is of the ignored ones.
        sums = ops.segment_sum(ops.reshape(weight, (-1,)), ops.reshape(index, (-1,)), pairs + 1)
        counts = ops.reshape(sums[:-1], (self.num_classes, self.num_classes))
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
