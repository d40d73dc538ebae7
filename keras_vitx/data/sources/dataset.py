"""Labeled sets of images, and their training, validation and test splits."""

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.data.images import as_uint8, read_picture
from keras_vitx.data.sources.names import text_of
from keras_vitx.text import shortened

MAX_CLASSES = 1_000_000  # Larger labels are an error.
HINT = "Give it to `keras_vitx.data.load_dataset`, and the result to `fit` or `evaluate`."
log = logging.getLogger(__name__)


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
        file = self.open(self.keys[index])
        if isinstance(file, io.BytesIO):
            file.name = str(self.id(index))  # In errors.
        return read_picture(file)

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
        array = root = self.array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":
            return vars(self)
        offset = root.offset + array.ctypes.data - root.ctypes.data
        view = array.shape, array.dtype.str, offset, array.strides
        return vars(self) | {"array": (root.filename, *view)}

    def __setstate__(self, state):
        if isinstance(state["array"], tuple):
            file, shape, dtype, *view = state["array"]
            state["array"] = np.ndarray(shape, dtype, np.memmap(file, "uint8", "r"), *view)
        vars(self).update(state)

    def read(self, index: int) -> np.ndarray:
        return as_uint8(self.array[self.keys[index]], "Images")


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
        return [text_of(self.images.name(index)) for index in range(self.size)]


@dataclass(frozen=True)
class Dataset:
    """A validated set of labeled images.

    Attributes:
        name: Name of the source, for messages.
        class_names: Label i means `class_names[i]`; None for regression targets.
        train: The training images; None of a source for evaluation only.
        validation: The images that select the best epoch: the validation split of the source, or
            images held out from its training split; None with `validation_split=0`.
        test: The test split of the source, which training never uses, or None.
        skipped: Image files that can't be read: of formats that Pillow can't read, such as HEIC
            without pillow-heif, or no regular files, such as broken links.
        multiple_labels: Whether a prediction is correct if it is any of the labels (n, classes)
            above 0 (ImageNet-ReaL).
    """

    name: str
    class_names: tuple[str, ...] | None
    train: Split | None = None
    validation: Split | None = None
    test: Split | None = None
    skipped: tuple[Path, ...] = ()
    multiple_labels: bool = False


def dataset_of(
    name: str,
    splits: Mapping[str, tuple[Sequence[np.ndarray], Any]],
    class_names: Sequence[str] | None = None,
    skipped: Sequence[Path] = (),
) -> Dataset:
    """Return a dataset of the images and labels of each split; a ValueError if they are invalid.

    Default class names are the integers up to the largest label.
    """
    classes = None if class_names is None else len(class_names)
    loaded = {}
    for split, (images, labels) in splits.items():
        if not len(images):
            raise ValueError(
                f"`source` must have images of every split. Received: {name}, without {split}."
            )
        labels = _check_labels(labels, len(images), classes, f"Labels of the {split} split")
        loaded[split] = Split(images, labels)
    labels = [split.labels for split in loaded.values()]
    if len({(array.dtype.kind, array.shape[1:]) for array in labels}) > 1:
        forms = ", ".join(f"{array.dtype} {array.shape}" for array in labels)
        raise ValueError(f"Labels must have one form in all splits. Received: {forms}.")
    first = loaded.get("train", next(iter(loaded.values()))).labels
    all_equal = first.dtype.kind == "i" and (first == first[0]).all()
    if "train" in loaded and (all_equal or classes == 1):
        only = f"every label is {first[0]}" if all_equal else f"only {class_names[0]!r}"
        raise ValueError(f"`source` {name} must have at least two classes. Received: {only}.")
    if class_names is None and not is_regression(np.concatenate(labels)):
        count = first.shape[1] if first.ndim == 2 else 1 + max(map(np.max, labels))
        class_names = map(str, range(count))
    return Dataset(name, class_names and tuple(class_names), **loaded, skipped=tuple(skipped))


def _check_labels(labels: Any, count: int, classes: int | None, what: str) -> np.ndarray:
    """Return `labels` in one of the forms of `Split.labels`; a ValueError if they are invalid.

    Valid are integers (count,) or (count, 1), numbers (count, classes), or floats for regression.
    Floats (count,) are classes if they are all 0 or 1, or if `classes` is known.
    """

    def error(expected: str, received: Any) -> ValueError:
        if isinstance(received, np.ndarray):
            received = shortened(map(repr, np.unique(received).tolist()), 5)
        return ValueError(f"{what} must be {expected}. Received: {received}.")

    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2):
        raise error("integers (n,) or numbers (n, classes)", f"shape {labels.shape}")
    if len(labels) != count:
        raise error("one per image", f"{len(labels)} labels for {count} images")
    if labels.dtype.kind not in "iufb":
        raise error(f"integers or floats, not {labels.dtype}", labels)
    if not np.isfinite(labels).all():
        raise error("finite", labels[~np.isfinite(labels)])
    if labels.ndim == 2:
        if classes not in (None, labels.shape[1]):
            raise error(f"(n, {classes}), one per class name", f"shape {labels.shape}")
        return labels.astype("float32")
    # Floats are regression targets even if all are integral, such as ages.
    if classes is None and labels.dtype.kind == "f" and not np.isin(labels, (0, 1)).all():
        return labels.astype("float32")
    bound = (classes or MAX_CLASSES) - 1
    wrong = labels[(labels != np.floor(labels)) | (labels < 0) | (labels > bound)]
    if len(wrong):
        raise error(f"integers in 0..{bound}", wrong)
    return labels.astype("int32")


def is_regression(labels: np.ndarray) -> bool:
    """Return whether checked labels are regression targets."""
    if labels.dtype.kind == "i":
        return False
    return labels.ndim == 1 or not ((labels >= 0) & (labels <= 1)).all()


def hold_out(
    split: Split, validation_split: float | Iterable[str | int], seed: int
) -> tuple[Split, Split | None]:
    """Split training images into (train, validation), by a fraction of each class or by names.

    A class of two or more images is in both splits, a single image stays in training. Labels
    (n, classes) are stratified by their largest entry, regression targets not at all. Raises a
    ValueError if no class has two images, or no image has one of the names.
    """
    if isinstance(validation_split, Real):
        if not validation_split:
            return split, None
        held_out = _is_drawn(split.labels, validation_split, seed)
    else:
        held_out = _is_named(split.names(), set(map(text_of, validation_split)))
    return split.take(np.flatnonzero(~held_out)), split.take(np.flatnonzero(held_out))


def _is_named(all_names: Sequence[str], names: set[str]) -> np.ndarray:
    """Return whether each image has one of the names, (n,)."""
    held_out = np.array([name in names for name in all_names])
    if not held_out.any():
        raise ValueError(
            "`validation_split` must name images of the source. Received: "
            f"{shortened(sorted(names))}; the source has {shortened(all_names)}."
        )
    if missing := sorted(names - set(all_names)):
        text = "%d held-out images are no longer in the source: %s"
        log.warning(text, len(missing), shortened(missing))
    return held_out


def _is_drawn(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return whether each image is drawn for validation, (n,)."""
    drawn = _draw(labels, fraction, np.random.RandomState(seed), keep=1)
    held_out = np.isin(np.arange(len(labels)), np.concatenate([*drawn.values()]))
    single = [str(group) for group, indices in drawn.items() if not len(indices)]
    if not held_out.any():
        raise ValueError(
            "`validation_split` must be 0, for no validation, if no class has two images. "
            f"Received: {fraction}."
        )
    if held_out.mean() > 1.5 * fraction:
        text = "%d of %d images are held out, not %g of them, as each class of two or more has one."
        log.warning(text, held_out.sum(), len(labels), fraction)
    if single:
        text = "Classes with a single image are used for training and missing from validation: %s."
        log.warning(text, shortened(single, 10))
    return held_out


def fraction_of(split: Split, fraction: float, seed: int) -> Split:
    """Return a random fraction of each class, at least one image, in the original order.

    A larger fraction contains the images of a smaller one. Regression targets are one class.
    """
    if fraction == 1:
        return split
    drawn = _draw(split.labels, fraction, np.random.default_rng(seed))
    return split.take(np.sort(np.concatenate([*drawn.values()])))


def _draw(labels: np.ndarray, fraction: float, random: Any, keep: int = 0) -> dict[int, np.ndarray]:
    """Return random indices of each class, at least one, but for `keep` of them."""
    if is_regression(labels):
        classes = np.zeros(len(labels), int)
    else:
        classes = labels if labels.ndim == 1 else labels.argmax(axis=-1)
    groups = {int(label): np.flatnonzero(classes == label) for label in np.unique(classes)}
    return {
        label: random.permutation(group)[
            : min(max(round(len(group) * fraction), 1), len(group) - keep)
        ]
        for label, group in groups.items()
    }
