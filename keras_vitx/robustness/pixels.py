"""Images of a model as pixels in 0..1, and back."""

import math
from numbers import Real
from typing import Any

import numpy as np

from keras_vitx.preprocessing import ModelInput


class Perturbation:
    """A change of a batch of images, applied to their pixels.

    Args:
        model: A model with `preprocessing`, which tells what its inputs are in pixels.

    Raises:
        ValueError: if the model has no preprocessing.
    """

    def __init__(self, model: Any):
        preprocessing = ModelInput.of(model).preprocessing
        self.mean = np.array(preprocessing.mean, "float32")
        self.std = np.array(preprocessing.std, "float32")

    def __call__(self, images: Any, labels: Any, index: int = 0) -> np.ndarray:
        """Return the perturbed images.

        Args:
            images: `(batch, height, width, channels)`, as the model takes them.
            labels: `(batch,)`, the indices of the outputs that are right.
            index: Index of the batch, from which random numbers follow.
        """
        pixels = np.asarray(images, "float32") * self.std + self.mean
        changed = np.clip(self.change(pixels, np.asarray(labels), index), 0, 1)
        return ((changed - self.mean) / self.std).astype("float32")

    def change(self, pixels: np.ndarray, labels: np.ndarray, index: int) -> np.ndarray:
        """Return the changed pixels, which are clipped to 0..1 afterwards."""
        raise NotImplementedError


def check_strength(name: str, value: Any, below: float = math.inf) -> float:
    """Return a strength as a number of at least 0 and at most `below`.

    Raises:
        ValueError: if it is not.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= below or math.isinf(value):
        limit = "" if math.isinf(below) else f" and at most {below:g}"
        raise ValueError(f"`{name}` must be a number of at least 0{limit}. Received: {value!r}.")
    return float(value)
