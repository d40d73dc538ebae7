"""Images with masks from directories, tensorflow-datasets or arrays; drawing and saving masks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_vitx.annotations import Probability, check_argument
from keras_vitx.data.images import as_uint8, decode_image, open_image
from keras_vitx.data.sources.directories import image_files, sub_directories
from keras_vitx.data.sources.names import split_of
from keras_vitx.data.sources.tfds import builder_of
from keras_vitx.files import atomic_write
from keras_vitx.segmentation.metrics import IGNORED

IMAGES = ("images", "JPEGImages")
MASKS = ("masks", "annotations", "SegmentationClass", "SegmentationClassPNG")
LAYOUT = (
    f"Expected a directory of images ({' or '.join(IMAGES)}) and one of masks "
    f"({' or '.join(MASKS)}) with the same names, both with sub-directories train and val, or "
    "training and validation, or neither."
)


@dataclass(frozen=True)
class MaskedImages:
    """Images and their masks, with the `names` of the images for messages.

    `read(i)` returns image i, uint8 (height, width, channels), and its mask, integers (height,
    width), the class of each pixel or `IGNORED`.
    """

    names: Sequence[Any]
    read: Callable[[int], tuple[np.ndarray, np.ndarray]]

    @property
    def size(self) -> int:
        return len(self.names)

    def pair(self, index: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an image and its mask; a ValueError if they don't fit each other or `classes`."""
        image, mask = self.read(index)
        if image.shape[:2] != mask.shape:
            raise ValueError(
                f"The mask of {self.names[index]} must have the image's size {image.shape[:2]}. "
                f"Received: {mask.shape}."
            )
        invalid = np.unique(mask[(mask != IGNORED) & ((mask < 0) | (mask >= classes))])
        if len(invalid):
            raise ValueError(
                f"The labels of the mask of {self.names[index]} must be in 0..{classes - 1}, or "
                f"{IGNORED} for ignored pixels. Received: {invalid[-1]}."
            )
        return image, mask.astype("int32")


@dataclass(frozen=True)
class MaskDataset:
    """A set of images with masks; label i means `class_names[i]`."""

    name: str
    train: MaskedImages
    validation: MaskedImages | None = None
    class_names: tuple[str, ...] | None = None


def load_dataset(
    source: Any,
    *,
    first_label: int | None = None,
    class_names: Sequence[str] | None = None,
    data_dir: str | os.PathLike | None = None,
) -> MaskDataset:
    """Load a set of images with masks.

    Loading reads only the names of files; they are decoded on access. Pixels with the label 255 are
    ignored.

    Args:
        source: One of
            a path to a directory with `images/` and `masks/`, whose files have the same names
            except for the suffix, each with or without sub-directories `train/` and `val/`;
            ADE20K's directory, `images/training/`, `annotations/training/`, ... and
            `objectInfo150.txt`, whose label 0 is ignored;
            Pascal VOC's, `JPEGImages/` and `SegmentationClass/`;
            "tfds:NAME", a dataset of tensorflow-datasets with the features `image` and
            `segmentation_mask`, such as "tfds:oxford_iiit_pet" (`first_label=1`);
            arrays, (images, masks) or ((images, masks), (validation images, masks)), of the shapes
            (n, height, width, channels) and (n, height, width).
        first_label: The label that becomes class 0; lower labels are ignored. None is 1 for
            ADE20K's layout, 0 otherwise.
        class_names: Names of the classes. None reads those of ADE20K's layout, or a file
            `class_names.txt` with one name per line.
        data_dir: The directory where tensorflow-datasets stores its files.

    Returns:
        A record with the attributes `name`, `train`, `validation` (or None) and `class_names`.
        `train.pair(i, classes)` returns image i and its mask, int32 in 0..classes - 1 or 255.

    Raises:
        ValueError: if the layout of the source is not supported, or a mask has no image.
        OSError: if a file can't be read.
        ImportError: if tensorflow-datasets is required but not installed.
    """
    if isinstance(source, MaskDataset):
        return source
    names = None if class_names is None else tuple(class_names)
    if isinstance(source, (tuple, list)):
        return MaskDataset("arrays", *_arrays(source, first_label or 0), class_names=names)
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"`source` must be a path, a name or arrays. Received: {source!r}.")
    if str(source).startswith("tfds:"):
        splits = _tfds(str(source).removeprefix("tfds:"), first_label or 0, data_dir)
    else:
        directory = Path(source).expanduser()
        if not directory.is_dir():
            raise ValueError(f"`source` must be a directory. Received: {str(source)!r}. {LAYOUT}")
        splits, names = _directory(directory, first_label), names or _names(directory)
    if "train" not in splits:
        raise ValueError(
            f"`source` must have a training split. Received: {source} without. {LAYOUT}"
        )
    return MaskDataset(str(source), splits["train"], splits.get("validation"), names)


def from_first_label(mask: np.ndarray, first_label: int) -> np.ndarray:
    """Return a mask whose first label is 0; lower labels and `IGNORED` are `IGNORED`."""
    labels = mask.astype("int32")
    is_class = (labels >= first_label) & (labels != IGNORED)
    return np.where(is_class, labels - first_label, IGNORED)


def _directory(directory, first_label):
    """Return the masked images of each split of a directory."""
    directories = []
    for names in (IMAGES, MASKS):
        existing = [directory / name for name in names if (directory / name).is_dir()]
        if len(existing) != 1:
            raise ValueError(
                f"`source` {directory} must have one of the directories {', '.join(names)}. "
                f"Received: {len(existing)}. {LAYOUT}"
            )
        directories += existing
    images, masks = directories
    if first_label is None:  # 1 for ADE20K's layout.
        first_label = int(masks.name == "annotations" and (masks / "training").is_dir())
    names = {split_of(path.name): path.name for path in sub_directories(masks)}
    splits = {split: name for split, name in names.items() if split} or {"train": ""}
    return {
        split: _pairs(images / name, masks / name, first_label) for split, name in splits.items()
    }


def _pairs(images, masks, first_label):
    """Return the masks in a directory with their images; other images are left out."""
    files = {path.relative_to(images).with_suffix(""): path for path in image_files(images)}
    paths = {path.relative_to(masks).with_suffix(""): path for path in image_files(masks)}
    if not paths:
        raise ValueError(f"`source` must have masks. Received: none in {masks}. {LAYOUT}")
    if missing := paths.keys() - files.keys():
        raise ValueError(
            f"`source` must have an image of every mask. Received: {paths[min(missing)]}, without "
            f"one in {images}."
        )
    pairs = [(files[name], path) for name, path in paths.items()]

    def read(index):
        image, path = pairs[index]
        with open_image(path) as picture:  # Gray values or, with a palette, indices.
            mask = np.array(picture)
        if mask.ndim != 2:
            raise ValueError(
                f"The mask {path} must have one number per pixel (gray, or with a palette). "
                f"Received: an image of mode {picture.mode!r}."
            )
        return decode_image(image), from_first_label(mask, first_label)

    return MaskedImages([image for image, _ in pairs], read)


def _names(directory):
    ade20k, names = directory / "objectInfo150.txt", directory / "class_names.txt"
    if ade20k.is_file():  # A header, then columns separated by tabs; the last one has the names.
        rows = [line.split("\t") for line in ade20k.read_text().splitlines()[1:] if line.strip()]
        return tuple(row[-1].split(",")[0].strip() for row in rows)
    if names.is_file():
        return tuple(line.strip() for line in names.read_text().splitlines() if line.strip())
    return None


def _arrays(source, first_label):
    """Yield the masked images of arrays, of one split or two."""
    pairs = source if isinstance(source[0], (tuple, list)) else (source,)
    if len(pairs) not in (1, 2) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            "`source` must be (images, masks) or ((images, masks), (validation images, masks)). "
            f"Received: {len(source)} items."
        )
    for images, masks in pairs:
        images, masks = as_uint8(images, "images"), np.asarray(masks)
        if images.ndim != 4 or images.shape[:3] != masks.shape or masks.dtype.kind not in "iu":
            raise ValueError(
                "`source` must be images (n, height, width, channels) and integer masks (n, "
                f"height, width). Received: {images.shape} and {masks.shape}, {masks.dtype}."
            )
        rows = list(zip(images, from_first_label(masks, first_label), strict=True))
        yield MaskedImages(range(len(rows)), rows.__getitem__)


def _tfds(name, first_label, data_dir):
    """Return the masked images of each split of a dataset of tensorflow-datasets."""
    builder = builder_of(name, data_dir, image="Image", segmentation_mask="Image")
    splits = {}
    for split in builder.info.splits:
        examples = builder.as_data_source(split=split)

        def read(index, examples=examples):
            example = examples[index]
            mask = np.asarray(example["segmentation_mask"])[..., 0]
            return np.asarray(example["image"]), from_first_label(mask, first_label)

        names = [f"tfds:{name}, {split} {i}" for i in range(len(examples))]
        # Oxford-IIIT Pet has train and test.
        split = "validation" if split == "test" else split_of(split)
        splits.setdefault(split, MaskedImages(names, read))
    return splits


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize a mask (height, width) with nearest neighbors, so that no new labels appear."""
    rows, columns = (
        np.minimum(((np.arange(new) + 0.5) * old / new).astype(int), old - 1)
        for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]


def palette(classes: int) -> np.ndarray:
    """Return uint8 (classes, 3), the colors of Pascal VOC: class 0 is black."""
    # The bits of a class, three at a time, are the highest bits of red, green and blue.
    numbers = np.arange(classes)[:, None] >> np.arange(3)
    bits = [(numbers >> 3 * bit & 1) << (7 - bit) for bit in range(8)]
    return np.sum(bits, axis=0).astype("uint8")


def overlay(
    image: np.ndarray, mask: np.ndarray, colors: np.ndarray | None = None, opacity: float = 0.6
) -> np.ndarray:
    """Return an image with a mask drawn over it.

    Args:
        image: uint8 (height, width, channels), one or three channels.
        mask: Integers (height, width). Ignored pixels and class 0, usually the background, keep the
            color of the image.
        colors: uint8 (classes, 3); None is the colors of Pascal VOC.
        opacity: Opacity of the mask, 0 to 1.

    Returns:
        uint8 (height, width, 3).

    Raises:
        ValueError: if the sizes differ, or `opacity` is out of range.
    """
    image, mask = np.asarray(image), np.asarray(mask)
    if image.shape[:2] != mask.shape:
        raise ValueError(
            f"`mask` must have the image's size {image.shape[:2]}. Received: {mask.shape}."
        )
    check_argument("opacity", opacity, Probability)
    colors = palette(IGNORED + 1) if colors is None else colors
    colored = (mask != 0) & (mask != IGNORED)
    pixels = np.broadcast_to(image, (*mask.shape, 3)).astype("float32")
    pixels[colored] = (1 - opacity) * pixels[colored] + opacity * colors[mask[colored]]
    return np.rint(pixels).astype("uint8")


def save_mask(mask: np.ndarray, path: str | os.PathLike) -> None:
    """Write a mask as a file for `load_dataset`: the classes, with the palette of Pascal VOC.

    Args:
        mask: Integers (height, width), 0 to 255.
        path: The file to write, .png.

    Raises:
        ValueError: if `path` is not a .png, or the mask has another shape or labels out of range.
        OSError: if the file can't be written.
    """
    mask = np.asarray(mask)
    if mask.ndim != 2 or mask.dtype.kind not in "iu" or mask.min() < 0 or mask.max() > 255:
        raise ValueError(
            f"`mask` must be integers 0..255, (height, width). Received: {mask.dtype} {mask.shape}."
        )
    if os.path.splitext(path)[1].lower() != ".png":
        raise ValueError(f"`path` must end in .png, which loses no label. Received: {path}.")
    picture = Image.fromarray(mask.astype("uint8"))
    picture.putpalette(palette(256).tobytes())
    with atomic_write(path) as temporary:
        picture.save(temporary)
