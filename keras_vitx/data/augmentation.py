"""Data augmentation in NumPy and Pillow.

An augmentation is a pure function of a uint8 image, the (height, width) of the
result, and `draws`, five random numbers in [0, 1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from keras_vitx.data.preprocessing import resize
from keras_vitx.text import nearest

# The number of uniform draws per image.
DRAWS = 5


def crop_flip(image: np.ndarray, size: tuple[int, int], draws: Sequence[float]) -> np.ndarray:
    """Randomly shift by up to an eighth of the size, and flip horizontally.

    The image is padded with a black border of an eighth of its size on each side, and
    a random window of the original size is cropped. The probability of a flip is 0.5.

    Args:
        image: uint8 (height, width, channels), already of size `size`.
        size: (height, width) of the result.
        draws: Five numbers in [0, 1), which determine the row and the column of the
            window and the flip; two are unused.

    Returns:
        uint8 (*size, channels).
    """
    (height, width), channels = size, image.shape[-1]
    top, left = height // 8, width // 8
    padded = np.zeros((height + 2 * top, width + 2 * left, channels), "uint8")
    padded[top : top + height, left : left + width] = image
    row, column = int(draws[0] * (2 * top + 1)), int(draws[1] * (2 * left + 1))
    window = padded[row : row + height, column : column + width]
    return window[:, ::-1] if draws[2] < 0.5 else window


def random_resized_crop(
    image: np.ndarray,
    size: tuple[int, int],
    draws: Sequence[float],
    scale: tuple[float, float] = (0.08, 1.0),
) -> np.ndarray:
    """Crop a random window, resize it, and flip horizontally with probability 0.5.

    The window covers a random fraction of the image area; its aspect ratio is
    log-uniform between 3:4 and 4:3. A window that exceeds the image along one axis is
    clipped. Resizing is bicubic with antialiasing.

    Args:
        image: uint8 (height, width, channels), of any size.
        size: (height, width) of the result.
        draws: Five numbers in [0, 1), which determine the area, the aspect ratio, the
            row and the column of the window, and the flip.
        scale: Minimum and maximum fraction of the area.

    Returns:
        uint8 (*size, channels).
    """
    height, width = image.shape[:2]
    side = math.sqrt((scale[0] + draws[0] * (scale[1] - scale[0])) * height * width)
    stretch = (4 / 3) ** (draws[1] - 0.5)  # the square root of the aspect ratio
    rows = min(max(int(side / stretch), 1), height)
    columns = min(max(int(side * stretch), 1), width)
    top = int(draws[2] * (height - rows + 1))
    left = int(draws[3] * (width - columns + 1))
    window = image[top : top + rows, left : left + columns]
    window = resize(window, size, Image.Resampling.BICUBIC)
    return window[:, ::-1] if draws[4] < 0.5 else window


@dataclass(frozen=True)
class Augmentation:
    """Settings of the augmentation of training images, in the order in which they apply.

    Attributes:
        crop: `"random_resized"` (a random window of the original image, resized), `"shift"`
            (by up to an eighth of the size) or None.
        scale: Least and greatest fraction of the area in a random window.
        ratio: Least and greatest aspect ratio (width over height) of a random window.
        flip: Probability of a horizontal flip.
        rand_augment: RandAugment as timm writes it, such as `"m9-mstd0.5-inc1"`, or None.
        color_jitter: Strength of changes of brightness, contrast and saturation.
        erasing: Probability of random erasing.
        repeats: Number of times that an image appears in a batch (repeated augmentation);
            an epoch still counts each image once.
        by: The library that augments, `"pillow"` or `"keras_cv"`.

    Raises:
        ValueError: if a value is out of range.
    """

    crop: Literal["random_resized", "shift"] | None = "random_resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rand_augment: str | None = None
    color_jitter: float = 0.0
    erasing: float = 0.0
    repeats: int = 1
    by: Literal["pillow", "keras_cv"] = "pillow"

    def __post_init__(self):
        for name, valid, expected in (
            (
                "crop",
                self.crop in ("random_resized", "shift", None),
                "'random_resized', 'shift' or None",
            ),
            ("flip", 0 <= self.flip <= 1, "in [0, 1]"),
            ("color_jitter", self.color_jitter >= 0, "at least 0"),
            ("erasing", 0 <= self.erasing <= 1, "in [0, 1]"),
            ("repeats", self.repeats >= 1, "at least 1"),
            ("by", self.by in ("pillow", "keras_cv"), "'pillow' or 'keras_cv'"),
        ):
            if not valid:
                raise ValueError(f"`{name}` must be {expected}. Received: {getattr(self, name)!r}.")


PRESETS = {
    "crop_flip": Augmentation(crop="shift"),
    "random_resized_crop": Augmentation(),
}
"""Augmentations by name."""


def augmentation_named(name: "str | Augmentation | None") -> Augmentation | None:
    """Return the augmentation of that name; others and None are returned unchanged.

    Raises:
        ValueError: if the name is unknown; the message suggests the nearest ones.
    """
    if name is None or isinstance(name, Augmentation):
        return name
    if name not in PRESETS:
        raise ValueError(f"augmentation: {name!r} is unknown. {nearest(name, PRESETS)}")
    return PRESETS[name]


def function_of(augmentation: Augmentation | None) -> Callable | None:
    """Return the function that augments an image, or None."""
    if augmentation is None or augmentation.crop is None:
        return None
    return crop_flip if augmentation.crop == "shift" else random_resized_crop
