"""Masks drawn over images."""

import numpy as np

from keras_vitx.segmentation.sources import IGNORED


def palette(classes: int) -> np.ndarray:
    """Return uint8 (classes, 3), the colours of Pascal VOC: class 0 is black.

    The bits of the class number, three at a time, are the highest bits of red, green and blue.
    """
    numbers = np.arange(classes)
    colours = np.zeros((classes, 3), "uint8")
    for place in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> channel & 1) << (7 - place)).astype("uint8")
        numbers = numbers >> 3
    return colours


def overlay(
    image: np.ndarray, mask: np.ndarray, colours: np.ndarray | None = None, opacity: float = 0.6
) -> np.ndarray:
    """Return an image with a mask drawn over it.

    Args:
        image: uint8 (height, width, channels), one or three channels.
        mask: Integers (height, width). Ignored pixels and class 0, mostly the background,
            keep the colour of the image.
        colours: uint8 (classes, 3); None is `palette`.
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
    colours = palette(IGNORED + 1) if colours is None else colours
    drawn = (mask != 0) & (mask != IGNORED)
    pixels = np.broadcast_to(image, (*mask.shape, 3)).astype("float32")
    pixels[drawn] = (1 - opacity) * pixels[drawn] + opacity * colours[mask[drawn]]
    return np.rint(pixels).astype("uint8")
