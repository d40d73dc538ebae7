"""Masks drawn over images, and written as files."""

import os

import numpy as np
from PIL import Image

from keras_vitx.files import atomic_write
from keras_vitx.segmentation.sources import IGNORED


def palette(classes: int) -> np.ndarray:
    """Return uint8 (classes, 3), the colors of Pascal VOC: class 0 is black.

    The bits of the class number, three at a time, are the highest bits of red, green and blue.
    """
    numbers = np.arange(classes)
    colors = np.zeros((classes, 3), "uint8")
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((numbers >> channel & 1) << (7 - bit)).astype("uint8")
        numbers = numbers >> 3
    return colors


def overlay(
    image: np.ndarray, mask: np.ndarray, colors: np.ndarray | None = None, opacity: float = 0.6
) -> np.ndarray:
    """Return an image with a mask drawn over it.

    Args:
        image: uint8 (height, width, channels), one or three channels.
        mask: Integers (height, width). Ignored pixels and class 0, mostly the background,
            keep the color of the image.
        colors: uint8 (classes, 3); None is `palette`.
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
    if not 0 <= opacity <= 1:
        raise ValueError(f"`opacity` must be in 0..1. Received: {opacity!r}.")
    colors = palette(IGNORED + 1) if colors is None else colors
    drawn = (mask != 0) & (mask != IGNORED)
    pixels = np.broadcast_to(image, (*mask.shape, 3)).astype("float32")
    pixels[drawn] = (1 - opacity) * pixels[drawn] + opacity * colors[mask[drawn]]
    return np.rint(pixels).astype("uint8")


def save_mask(mask: np.ndarray, path: str | os.PathLike) -> None:
    """Write a mask as a file for `load_dataset`: the classes, shown in the colors of `palette`.

    Args:
        mask: Integers (height, width), 0 to 255.
        path: The file to write, .png.

    Raises:
        ValueError: if `path` is not a .png, or the mask has another shape or other labels.
        OSError: if the file can't be written.
    """
    mask = np.asarray(mask)
    if mask.ndim != 2 or mask.dtype.kind not in "iu" or mask.min() < 0 or mask.max() > 255:
        raise ValueError(
            "`mask` must have integers 0..255, (height, width). Received: "
            f"{mask.dtype} {mask.shape}."
        )
    if os.path.splitext(path)[1].lower() != ".png":
        raise ValueError(f"`path` must end in .png, which loses no label. Received: {path}.")
    picture = Image.fromarray(mask.astype("uint8"))
    picture.putpalette(palette(256).tobytes())
    with atomic_write(path) as temporary:
        picture.save(temporary)
