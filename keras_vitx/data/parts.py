"""What every source gives: a training and a validation part of labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

# More than any set has: a label beyond it is an accident, not a class.
MAX_CLASSES = 1_000_000


class Part(NamedTuple):
    """Images and their labels, in one order.

    `images` has a length, and `images[i]` is a uint8 array (height, width,
    channels): an array (n, height, width, channels), or an object that decodes
    an image when asked. `labels` is int32 (n,).
    """

    images: Sequence[np.ndarray]
    labels: np.ndarray

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A labelled set of images, opened and checked, cut in two parts.

    Attributes:
        name: What was opened, for messages.
        class_names: The names of the classes; label i is `class_names[i]`.
        train: The images to train on.
        validation: The images to validate on.
        skipped: The files left out because they can't be decoded.
    """

    name: str
    class_names: tuple[str, ...]
    train: Part
    validation: Part
    skipped: tuple[Path, ...] = ()


def checked_labels(labels, count: int, classes: int | None, what: str) -> np.ndarray:
    """Return `labels` as int32 (count,).

    Args:
        labels: Integers, (count,) or (count, 1).
        count: The number of images they belong to.
        classes: The number of classes, or None where it isn't known.
        what: What they are called in an error.

    Raises:
        ValueError: when there are not `count` of them, or when one isn't an
            integer in 0..classes-1.
    """
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{what}: expected one integer an image, an array of shape (n,), got shape "
            f"{labels.shape}. One-hot labels become integers with `.argmax(axis=-1)`."
        )
    if len(labels) != count:
        raise ValueError(f"{what}: {len(labels)} labels for {count} images.")
    if labels.dtype.kind not in "iufb":
        raise ValueError(f"{what}: expected integers, got {_some(labels)} ({labels.dtype}).")
    wrong = labels[~(labels == np.floor(labels))] if labels.dtype.kind == "f" else labels[:0]
    if len(wrong):
        raise ValueError(f"{what}: expected integers, got {_some(wrong)}.")
    wrong = labels[(labels < 0) | (labels >= (classes or MAX_CLASSES))]
    if len(wrong):
        bound = f"0..{(classes or MAX_CLASSES) - 1}"
        raise ValueError(f"{what}: expected {bound}, got {_some(wrong)}.")
    return labels.astype("int32")


def stratified_split(
    labels: np.ndarray, validation_split: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (train, validation) of a seeded split, each class cut alike.

    A class of two or more images is in both parts; a lone image is trained on.

    Raises:
        ValueError: when `validation_split` is not between 0 and 1, or when no
            class has two images.
    """
    if not 0 < validation_split < 1:
        raise ValueError(
            f"validation_split: expected a number between 0 and 1, got {validation_split!r}."
        )
    random = np.random.RandomState(seed)
    validation = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        indices = np.flatnonzero(labels == label)
        share = min(max(round(len(indices) * validation_split), 1), len(indices) - 1)
        validation[random.permutation(indices)[:share]] = True
    if not validation.any():
        raise ValueError(
            "validation_split: no class has two images, so none can be set aside for validation."
        )
    return np.flatnonzero(~validation), np.flatnonzero(validation)


def _some(values: np.ndarray) -> str:
    """Return the first few different values, for an error."""
    values = np.unique(values).tolist()
    return ", ".join(map(repr, values[:5])) + (", ..." if len(values) > 5 else "")
