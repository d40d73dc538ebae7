"""Labeled sets of images, and their training, validation and test splits."""

import io
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.decoding import read_picture


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
        """Return an RGB picture; an OSError names it.

        It is cheaper to crop than an array: decoding and a random crop of a JPEG of 500 x 375 take
        2.5 ms instead of 2.9.
        """
        return read_picture(self.open(self.keys[index]), name=str(self.id(index)))

    def read(self, index: int) -> np.ndarray:
        return np.asarray(self.picture(index))

    def id(self, index: int) -> Any:
        """Return the id of an image in messages."""
        return self.keys[index]

    def name(self, index: int) -> str:
        """Return the name of an image in a list of held-out images."""
        return str(self.id(index))


class ImageFiles(Images):
    """Image files, listed relative to `root` in held-out images, so that the directory may move."""

    def __init__(self, paths: Iterable[Path], root: Path | None = None):
        super().__init__(list(paths))
        self.root = root

    def name(self, index: int) -> str:
        path = self.keys[index]
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

    def read(self, index: int) -> np.ndarray:
        image = self.array[self.keys[index]]
        return image if image.dtype == np.uint8 else np.rint(image * 255).astype("uint8")


@dataclass(frozen=True)
class Split:
    """Images and their labels, in the same order; a random-access data source of Grain.

    `split[i]` is the pair of image i and its label.

    Attributes:
        images: A sequence of uint8 arrays (height, width, channels), read or decoded on access to
            `images[i]`; `np.asarray(images)` if they have one size.
        labels: One of
            int32 (n,): the class of each image;
            float32 (n, classes), in [0, 1]: one-hot, soft or multi-hot labels;
            float32 (n,) or (n, targets): regression targets.
    """

    images: Images
    labels: np.ndarray

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.images[index], self.labels[index]

    @property
    def size(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> "Split":
        """Return the images and labels at `indices`."""
        return Split(self.images[indices], self.labels[indices])

    def id(self, index: int) -> Any:
        """Return the id of an image in messages: its path, or its index in the source."""
        return self.images.id(index)

    def names(self) -> list[str]:
        """Return the lines of a list of held-out images: paths relative to the source, or ids."""
        return [self.images.name(index) for index in range(self.size)]


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
        strict: Whether an image that can't be decoded is an error. If not, it is logged, replaced
            by another in training, and does not count in evaluation.
    """

    name: str
    class_names: tuple[str, ...] | None
    train: Split | None = None
    validation: Split | None = None
    test: Split | None = None
    skipped: tuple[Path, ...] = ()
    held_out: bool = False
    strict: bool = False


def dataset_of(
    name: str,
    splits: Mapping[str, tuple[Images, Any]],
    class_names: Sequence[str] | None = None,
    skipped: Sequence[Path] = (),
) -> Dataset:
    """Return a dataset of the images and labels of each split; a ValueError if they don't fit.

    Default class names are the integers up to the largest label.
    """
    found = {
        split: Split(images, _labels(labels, len(images), class_names, split))
        for split, (images, labels) in splits.items()
    }
    labels = np.concatenate([split.labels for split in found.values()])
    if class_names is None and not is_regression(labels):
        count = labels.shape[1] if labels.ndim == 2 else 1 + labels.max()
        class_names = list(map(str, range(count)))
    if labels.dtype.kind == "i" and "train" in found and (labels == labels[0]).all():
        raise ValueError(
            f"`source` {name} must have at least two classes. Received: every label is {labels[0]}."
        )
    return Dataset(name, class_names and tuple(class_names), **found, skipped=tuple(skipped))


def _labels(labels: Any, count: int, names: Sequence[str] | None, split: str) -> np.ndarray:
    """Return `labels` in one of the forms of `Split.labels`; a ValueError if they can't be.

    Valid are integers (count,) or (count, 1), numbers (count, classes), or floats for regression.
    Floats (count,) are classes if they are all 0 or 1, or if classes have names.
    """
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    shapes = ((count,), (count, labels.shape[-1] if names is None else len(names)))
    if labels.shape not in shapes:
        raise ValueError(
            f"Labels of the {split} split must be (n,) or (n, classes), one per image. Received: "
            f"shape {labels.shape} for {count} images."
        )
    # Floats are regression targets even if all are integral, such as ages.
    is_regression = names is None and labels.dtype.kind == "f" and not np.isin(labels, (0, 1)).all()
    if labels.ndim == 2 or is_regression:
        return labels.astype("float32")
    bound = np.inf if names is None else len(names)
    wrong = labels[(labels != np.floor(labels)) | (labels < 0) | (labels >= bound)]
    if len(wrong):
        raise ValueError(
            f"Labels of the {split} split must be whole numbers from 0 on, each with a class name. "
            f"Received: {wrong[0]}."
        )
    return labels.astype("int32")


def is_regression(labels: np.ndarray) -> bool:
    """Return whether the labels of a split are regression targets."""
    if labels.dtype.kind == "i":
        return False
    return labels.ndim == 1 or not ((labels >= 0) & (labels <= 1)).all()
