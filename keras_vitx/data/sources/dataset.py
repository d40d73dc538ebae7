"""Labeled sets of images, and their training, validation and test splits."""

import io
import itertools
import mmap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.checks import check
from keras_vitx.data.decoding import read_picture
from keras_vitx.data.sources.names import in_order, name_of, names_of
from keras_vitx.pixels import Pixels


class Images(Sequence):
    """Encoded images by keys, decoded to RGB, uint8 (height, width, 3), on access; sliced by copy.

    `open` returns the path of an image, or a binary file.
    """

    def __init__(self, keys: Sequence[Any]):
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index):
        if isinstance(index, (int, np.integer)):
            return self.read(index)
        subset = object.__new__(type(self))
        keys = [self.keys[i] for i in np.arange(len(self))[index]]
        vars(subset).update(vars(self), keys=keys)
        return subset

    def __getstate__(self):
        return vars(self) | {"max_pixels": Image.MAX_IMAGE_PIXELS}

    def __setstate__(self, state):
        Image.MAX_IMAGE_PIXELS = state.pop("max_pixels")  # Also in a worker process.
        vars(self).update(state)

    def open(self, key: Any) -> Path | io.BytesIO:
        return key

    def picture(self, index: int) -> Image.Image:
        """Return an RGB picture, cheaper to crop than an array (of 500 x 375: 2.5, 2.9 ms)."""
        return read_picture(self.open(self.keys[index]), name=str(self.id(index)))

    def read(self, index: int) -> Pixels:
        return np.asarray(self.picture(index))

    def id(self, index: int) -> Any:
        """Return the id of an image in messages: its path, or its index in the source."""
        return self.keys[index]

    def name(self, index: int) -> str:
        """Return the name of an image in a list of held-out images."""
        return str(self.id(index))


class ImageFiles(Images):
    """Image files, or contents `{"bytes": ..., "path": ...}`; names are relative to `root`."""

    def __init__(self, files: Iterable[Any], root: Path | None = None):
        super().__init__([file if isinstance(file, dict) else Path(file) for file in files])
        self.root = root

    def id(self, index: int) -> Any:
        key = self.keys[index]
        return key["path"] or zlib.crc32(key["bytes"]) if isinstance(key, dict) else key

    def name(self, index: int) -> str:
        path = self.id(index)
        return path.relative_to(self.root).as_posix() if self.root else str(path)


class ArrayImages(Images):
    """Rows of an array (n, height, width, channels), uint8 or floats in 0..1, by their indices.

    They are not copied before, as the array may be a file larger than the memory (`np.memmap`),
    which a worker process opens itself.
    """

    def __init__(self, array: np.ndarray):
        super().__init__(range(len(array)))
        self.array = array

    def __getstate__(self):
        file, state = self.array.base, super().__getstate__()
        # A part of a file is copied, as are changes that are in memory only (mode "c").
        if isinstance(file, np.memmap) and isinstance(file.base, mmap.mmap) and file.mode != "c":
            order = "C" if file.flags.c_contiguous else "F"
            state["array"] = file.filename, file.dtype, "r", file.offset, file.shape, order
        return state

    def __setstate__(self, state):
        if isinstance(state["array"], tuple):
            state["array"] = np.asarray(np.memmap(*state["array"]))
        super().__setstate__(state)

    def read(self, index: int) -> Pixels:
        image = self.array[self.keys[index]]
        return image if image.dtype == np.uint8 else np.rint(image * 255).astype("uint8")


@dataclass(frozen=True)
class Split:
    """Images and their labels, in the same order; a random-access data source of Grain.

    `split[i]` is the pair of image i and its label.

    Attributes:
        images: A sequence of uint8 arrays (height, width, channels), decoded on access.
        labels: One of
            int32 (n,): the class of each image;
            float32 (n, classes), in [0, 1]: one-hot, soft or multi-hot labels;
            float32 (n,) or (n, targets): regression targets.
        class_names: What the labels mean, as in `Dataset`.
    """

    images: Images
    labels: np.ndarray
    class_names: tuple[str, ...] | None = None
    size = property(len)  # The number of images.

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.images[index], self.labels[index]

    def take(self, indices: np.ndarray) -> "Split":
        """Return the images and labels at `indices`."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def names(self) -> list[str]:
        """Return the lines of a list of held-out images: paths relative to the source, or ids."""
        return [self.images.name(index) for index in range(len(self))]


@dataclass(frozen=True)
class Dataset:
    """A validated set of labeled images.

    Attributes:
        name: Name of the source, for messages.
        class_names: Label i means `class_names[i]`; None for regression targets.
        train: The training images; None of a source for evaluation only.
        validation: The images that select the best epoch: the validation split of the source, or
            images held out from its training split; or None.
        test: The test split of the source, which training never uses, or None.
        skipped: Image files of formats that Pillow can't read, such as HEIC without pillow-heif.
        held_out: Whether `validation` was held out from `train`.
        strict: Whether an image that can't be decoded is an error, as in `load_dataset`.
    """

    name: str
    class_names: tuple[str, ...] | None
    train: Split | None = None
    validation: Split | None = None
    test: Split | None = None
    skipped: tuple[Path, ...] = ()
    held_out: bool = False
    strict: bool = False

    def __post_init__(self):
        for split in (self.train, self.validation, self.test):
            names = split.class_names if split else None
            rule = "A split must have the dataset's class names: `from_files(..., split=)`."
            check(names in (None, self.class_names), rule, names)


def dataset_of(
    name: str,
    splits: Mapping[str, tuple[Images, Any]],
    class_names: Sequence[Any] | Mapping[Any, Any] | None = None,
    skipped: Sequence[Path] = (),
) -> Dataset:
    """Return a dataset of the images and labels of each split; a ValueError if they don't fit.

    Default class names are those in the labels, or the integers up to the largest label.
    """
    read = {split: read_labels(*pair) for split, pair in splits.items()}
    if class_names is None and (texts := [y for y in read.values() if isinstance(y, list)]):
        class_names = in_order(itertools.chain(*texts))
    names = None if class_names is None else names_of(class_names)
    labels = {split: _numbers(y, splits[split][0], names) for split, y in read.items()}
    together = np.concatenate([*labels.values()])
    if names is None and not is_regression(together):
        count = together.shape[1] if together.ndim == 2 else 1 + together.max()
        names = tuple(map(str, range(count)))
    several = together.dtype.kind == "f" or (together != together[0]).any()
    rule = f"`source` {name} must have at least two classes."
    check(several or "train" not in labels, rule, together[:3])
    parts = {split: Split(splits[split][0], y, names) for split, y in labels.items()}
    return Dataset(name, names, **parts, skipped=tuple(skipped))


def read_labels(images: Images, labels: Any) -> list[str] | np.ndarray:
    """Return labels as names, or as finite numbers (n,) or (n, classes)."""
    try:
        labels = np.asarray(labels)
    except ValueError:  # Lists of different lengths.
        labels = np.asarray(labels, object)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    rule = f"`labels` must be (n,) or (n, classes), one for each of {len(images)} images."
    check(labels.ndim in (1, 2) and len(labels) == len(images), rule, labels.shape)
    if labels.dtype.kind in "biuf":
        values, valid = labels, np.isfinite(labels if labels.ndim == 1 else labels.sum(1))
    else:
        values = [name_of(label) for label in labels]
        valid = np.array([name is not None for name in values], bool)
    _check_each(valid, "`labels` must be a name or finite numbers for each image.", labels, images)
    return values


def _numbers(given: Any, images: Images, names: tuple[str, ...] | None) -> np.ndarray:
    """Return labels from `read_labels` in one of the forms of `Split.labels`.

    Floats (n,) are classes if they are all 0 or 1, or if classes have names.
    """
    labels, bound = given, np.inf if names is None else len(names)
    if isinstance(given, list):
        index = {name: label for label, name in enumerate(names)}
        labels = np.array([index.get(name, -1) for name in given])
    # Floats are regression targets even if all are integral, such as ages.
    is_regression = names is None and labels.dtype.kind == "f" and not np.isin(labels, (0, 1)).all()
    if labels.ndim == 2 or is_regression:
        rule = "`labels` (n, classes) must have a column for each of `class_names`."
        check(names is None or labels.shape[1] == bound, rule, labels.shape)
        return labels.astype("float32")
    valid = (labels == np.floor(labels)) & (labels >= 0) & (labels < bound)
    rule = "`labels` must be in `class_names`, or whole numbers from 0 on, each with a class name."
    _check_each(valid, rule, given, images)
    return labels.astype("int32")


def _check_each(valid: np.ndarray, rule: str, labels: Any, images: Images) -> None:
    """Raise a ValueError of the first label that is not valid, and its image."""
    for index in np.flatnonzero(~valid)[:1]:
        label = np.asarray(labels).tolist()[index]
        raise ValueError(f"{rule} Received: {label!r:.100} for {images.id(index)}.")


def is_regression(labels: np.ndarray) -> bool:
    """Return whether the labels of a split are regression targets."""
    if labels.dtype.kind == "i":
        return False
    return labels.ndim == 1 or not ((labels >= 0) & (labels <= 1)).all()
