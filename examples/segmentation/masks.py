"""Images with masks from a directory, and masks as pictures."""

from pathlib import Path

import numpy as np
from PIL import Image

import keras_vitx as kv

IMAGES = "images", "JPEGImages"
MASKS = "masks", "annotations", "SegmentationClassPNG", "SegmentationClass"
TRAIN, VALIDATION = ("train", "training", ""), ("val", "validation")


class Pairs:
    """The masks of a directory with their images of the same names, read when they are needed.

    `pairs[i]` is a uint8 image `(height, width, 3)` and its mask `(height, width)`, from the gray
    values or the indices into the palette. `first_label` becomes class 0; lower ones are ignored.
    """

    def __init__(self, images, masks, first_label=0):
        found = {path.stem: path for path in images.iterdir()}
        self.paths = [(found[path.stem], path) for path in sorted(masks.glob("*.png"))]
        self.first_label = first_label

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image, mask = self.paths[index]
        labels = np.asarray(Image.open(mask), "int32")
        is_class = (labels >= self.first_label) & (labels != 255)
        return kv.data.decode_image(image), np.where(is_class, labels - self.first_label, 255)


def load(directory):
    """Return the pairs of a directory for training and validation, and the names of the classes.

    It has images/ and masks/, each with or without train/ and val/, and class_names.txt, a name a
    line; or is ADE20K's (ADEChallengeData2016) or Pascal VOC's. Without val/, training and
    validation are the same.
    """
    directory = Path(directory).expanduser()
    images, masks = (first(directory, names) for names in (IMAGES, MASKS))
    is_ade20k = (directory / "objectInfo150.txt").exists()
    parts = [first(masks, names) for names in (TRAIN, VALIDATION)]
    # ADE20K's label 0 is no class.
    train, *validation = (
        Pairs(images / x.relative_to(masks), x, int(is_ade20k)) for x in parts if x
    )
    if is_ade20k:  # A header, then rows, the names last.
        rows = (directory / "objectInfo150.txt").read_text().splitlines()[1:]
        names = [row.split("\t")[-1].split(",")[0].strip() for row in rows]
    else:
        names = (directory / "class_names.txt").read_text().split("\n")
    return train, (validation or [train])[0], [name for name in names if name]


def first(directory, names):
    """Return the first sub-directory that exists; None if there is none."""
    return next((directory / name for name in names if (directory / name).is_dir()), None)


def palette(classes=256):
    """Return uint8 (classes, 3), the colors of Pascal VOC: class 0 is black."""
    # The bits of a class, three at a time, are the highest bits of red, green and blue.
    numbers = np.arange(classes)[:, None] >> np.arange(3)
    bits = [(numbers >> 3 * bit & 1) << (7 - bit) for bit in range(8)]
    return np.sum(bits, axis=0).astype("uint8")


def overlay(image, mask, opacity=0.6):
    """Return an image with its classes in color, but for class 0 and ignored pixels."""
    colored = ((mask != 0) & (mask != 255))[..., None]
    mixed = (1 - opacity) * image + opacity * palette()[mask]
    return np.rint(np.where(colored, mixed, image)).astype("uint8")
