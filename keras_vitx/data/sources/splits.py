"""Labelled sets of images, and their training, validation and test splits."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

# No dataset has more classes: a larger label is an error.
MAX_CLASSES = 1_000_000
SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
"""The names that folders, files and columns have for each split, in lower case."""
log = logging.getLogger(__name__)


def split_of(name: str) -> str | None:
    """Return the split that a folder or a shard of this name holds; None for another name."""
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


@dataclass(frozen=True)
class Split:
    """Images and their labels, in the same order; a random-access data source of Grain.

    `split[i]` is the pair of image i and its label.

    Attributes:
        images: A sequence of uint8 arrays (height, width, channels): an array
            (n, height, width, channels), or an object that decodes image i on access
            to `images[i]`.
        labels: One of
            int32 (n,): the class of each image;
            float32 (n, classes), in [0, 1]: one-hot, soft or multi-hot labels;
            float32 (n,) or (n, targets): regression targets.
        ids: The id of each image of an array, (n,): its index in the source. None for
            0, 1, 2, ..., and for images with a method `id` of their own.
    """

    images: Sequence[np.ndarray]
    labels: np.ndarray
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.images[index], self.labels[index]

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.labels)

    def take(self, indices: np.ndarray) -> "Split":
        """Return the images and labels at `indices`."""
        if not isinstance(self.images, np.ndarray):
            return Split(self.images.take(indices), self.labels[indices])
        ids = np.arange(self.size) if self.ids is None else self.ids
        return Split(self.images[indices], self.labels[indices], ids[indices])

    def id(self, index: int) -> Any:
        """Return what names an image in messages: its path, or its index in the source."""
        if hasattr(self.images, "id"):
            return self.images.id(index)
        return int(index if self.ids is None else self.ids[index])

    def names(self) -> list[str]:
        """Return what names each image in a list of held-out images.

        The path relative to the folder of the source, so that the folder may move; else the id.
        """
        of = getattr(self.images, "name", self.id)
        return [str(of(index)) for index in range(self.size)]


@dataclass(frozen=True)
class Dataset:
    """A labelled set of images, checked.

    Attributes:
        name: Name of the source, for messages.
        class_names: Label i means `class_names[i]`; None for regression targets.
        train: The training images.
        validation: The images that select the best epoch: the validation split of the
            source, or else images held out from its training split; None with
            `validation_split=0`.
        test: The test split of the source, which training never uses, or None.
        skipped: Image files of a kind that Pillow can't read here, such as HEIC without
            pillow-heif.
        any_of: Whether labels (n, classes) hold several right classes per image, of which a
            prediction needs to be one (ImageNet-ReaL).
    """

    name: str
    class_names: tuple[str, ...] | None
    train: Split
    validation: Split | None = None
    test: Split | None = None
    skipped: tuple[Path, ...] = ()
    any_of: bool = False


def checked_labels(labels, count: int, classes: int | None, what: str) -> np.ndarray:
    """Return `labels` in one of the forms of `Split.labels`.

    Args:
        labels: Integers (count,) or (count, 1); numbers in [0, 1], (count, classes); or
            floats, (count,) or (count, targets), for regression. Floats (count,) are classes
            if they are all 0 or 1, or if `classes` is known.
        count: Number of images.
        classes: Number of classes, or None if unknown.
        what: Name of the labels in errors.

    Raises:
        ValueError: if the number or the shape of the labels is wrong, if one is NaN or
            infinite, or if an integer is outside 0..classes-1.
    """
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2):
        raise ValueError(
            f"{what} must be integers (n,) or numbers (n, classes). Received: shape {labels.shape}."
        )
    if len(labels) != count:
        raise ValueError(
            f"{what} must be one per image. Received: {len(labels)} labels for {count} images."
        )
    if labels.dtype.kind not in "iufb":
        raise ValueError(
            f"{what} must be integers or floats. Received: {_some(labels)} ({labels.dtype})."
        )
    if not np.isfinite(labels).all():
        raise ValueError(f"{what} must be finite. Received: {_some(labels[~np.isfinite(labels)])}.")
    if labels.ndim == 2:
        if classes is not None and labels.shape[1] != classes:
            raise ValueError(
                f"{what} must have the shape (n, {classes}), as there are {classes} class names. "
                f"Received: {labels.shape}."
            )
        return labels.astype("float32")
    # Ages are numbers, also where all of them are whole.
    if classes is None and labels.dtype.kind == "f" and not np.isin(labels, (0, 1)).all():
        return labels.astype("float32")
    bound = (classes or MAX_CLASSES) - 1
    wrong = labels[(labels != np.floor(labels)) | (labels < 0) | (labels > bound)]
    if len(wrong):
        raise ValueError(f"{what} must be integers in 0..{bound}. Received: {_some(wrong)}.")
    return labels.astype("int32")


def number_of_classes(labels: Sequence[np.ndarray]) -> int | None:
    """Return the number of classes implied by checked labels; None for regression.

    Args:
        labels: The labels of the splits of one source.
    """
    if labels[0].ndim == 2:
        in_range = all(((each >= 0) & (each <= 1)).all() for each in labels)
        return labels[0].shape[1] if in_range else None
    if any(each.dtype.kind == "f" for each in labels):
        return None
    return 1 + max(int(each.max()) for each in labels)


def hold_out(
    split: Split, validation_split: float | Iterable[str | int], seed: int
) -> tuple[Split, Split | None]:
    """Split training images into (train, validation), stratified by class.

    A class of two or more images is in both splits. The only image of a class stays in the
    training split, and a warning is logged. Labels (n, classes) are stratified by their
    largest entry; regression targets are not stratified.

    Args:
        split: The images.
        validation_split: Fraction of each class used for validation, in [0, 1); with 0,
            validation is None. Or the `Split.names` of the images to hold out; names that are no
            longer there are logged.
        seed: Seed of the split.

    Raises:
        ValueError: if no class has two images, or no image has one of the names.
    """
    if not isinstance(validation_split, Real):
        return _held_out_by_name(split, set(map(str, validation_split)))
    if not validation_split:
        return split, None
    random = np.random.RandomState(seed)
    groups = _groups(split.labels)
    validation = np.zeros(split.size, bool)
    lone = []
    for group in np.unique(groups):
        indices = np.flatnonzero(groups == group)
        share = min(max(round(len(indices) * validation_split), 1), len(indices) - 1)
        validation[random.permutation(indices)[:share]] = True
        if not share:
            lone.append(int(group))
    if not validation.any():
        raise ValueError(
            "validation_split: no class has two images, so there are none for validation. "
            "Pass validation_split=0 to train without validation."
        )
    if lone:
        log.warning(
            "Classes with a single image are used for training and missing from validation: %s.",
            ", ".join(map(str, lone[:10])) + (", ..." if len(lone) > 10 else ""),
        )
    return split.take(np.flatnonzero(~validation)), split.take(np.flatnonzero(validation))


def _held_out_by_name(split: Split, names: set[str]) -> tuple[Split, Split]:
    present = split.names()
    validation = np.array([name in names for name in present])
    if not validation.any():
        raise ValueError(
            "`validation_split` must name images of the source. Received: "
            f"{', '.join(sorted(names)[:3])}, ...; the source has {', '.join(present[:3])}, ..."
        )
    if missing := sorted(names - set(present)):
        log.warning(
            "%d held-out images are no longer in the source: %s%s",
            len(missing), ", ".join(missing[:3]), ", ..." if len(missing) > 3 else "",
        )  # fmt: skip
    return split.take(np.flatnonzero(~validation)), split.take(np.flatnonzero(validation))


def fraction_of(split: Split, fraction: float, seed: int) -> Split:
    """Return a random fraction of each class, at least one image, in the original order.

    Args:
        split: The images. Regression targets form a single class.
        fraction: The fraction, in (0, 1].
        seed: Seed of the choice. A larger fraction includes the images of a smaller one.
    """
    if fraction == 1:
        return split
    random = np.random.default_rng(seed)
    groups = _groups(split.labels)
    kept = []
    for group in np.unique(groups):
        indices = random.permutation(np.flatnonzero(groups == group))
        kept.append(indices[: max(round(len(indices) * fraction), 1)])
    return split.take(np.sort(np.concatenate(kept)))


def _groups(labels: np.ndarray) -> np.ndarray:
    """Return the stratum of each image, (n,)."""
    if labels.dtype.kind == "f" and number_of_classes([labels]) is None:
        return np.zeros(len(labels), int)
    return labels if labels.ndim == 1 else labels.argmax(axis=-1)


def _some(values: np.ndarray) -> str:
    """Return the first few distinct values, for an error."""
    values = np.unique(values).tolist()
    return ", ".join(map(repr, values[:5])) + (", ..." if len(values) > 5 else "")
