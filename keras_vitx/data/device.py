"""What is computed on the device, to which images travel as uint8."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.data.augmentation.erasing import noise
from keras_vitx.preprocessing import Preprocessing


def has_accelerator() -> bool:
    """Return whether Keras computes on a GPU or TPU to which batches can be sent as uint8.

    `fit` passes batches through `tf.data` under TensorFlow, and `keras.distribution` splits them.
    """
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    if keras.backend.backend() == "jax" and keras.distribution.distribution() is None:
        import jax

        return jax.default_backend() != "cpu"
    return False


def normalize_on_device(images: np.ndarray, preprocessing: Preprocessing) -> Any:
    """Return what `preprocessing.normalize` returns."""
    images = ops.cast(ops.convert_to_tensor(images), "float32") / 255.0
    mean, std = (
        ops.convert_to_tensor(values, "float32")
        for values in (preprocessing.mean, preprocessing.std)
    )
    return (images - mean) / std


def erase_on_device(images: Any, boxes: np.ndarray) -> Any:
    """Return what `erasing.erase_box` makes of each image.

    Args:
        images: A tensor, float32 (batch, height, width, channels).
        boxes: int32 (batch, 5), of `erasing.draw_erasing`.
    """
    _, height, width, channels = images.shape
    boxes = ops.convert_to_tensor(boxes)[:, :, None]
    rows, columns = ops.arange(height), ops.arange(width)
    inside_rows = (rows >= boxes[:, 0]) & (rows < boxes[:, 0] + boxes[:, 2])
    inside_columns = (columns >= boxes[:, 1]) & (columns < boxes[:, 1] + boxes[:, 3])
    inside = ops.logical_and(inside_rows[:, :, None], inside_columns[:, None])
    count = height * width * channels
    found = ops.take(ops.convert_to_tensor(noise(count)), boxes[:, 4] + ops.arange(count))
    return ops.where(inside[..., None], ops.reshape(found, images.shape), images)
