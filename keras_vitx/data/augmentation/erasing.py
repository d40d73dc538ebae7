"""Random erasing: a box of an image is replaced by noise.

Zhong et al., 2020, with timm's defaults and mode "pixel". `keras.layers.RandomErasing` of
Keras 3.15 differs: the height and the width of its box are drawn independently, without limits
of the aspect ratio, and a `factor` p erases with probability p / 2, as the probability is itself
uniform in [0, p].
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from keras_vitx.data.augmentation.windows import ATTEMPTS

# The box, as a fraction of the image area, and its aspect ratio (height over width).
AREA = (0.02, 1 / 3)
RATIO = (0.3, 1 / 0.3)
# Number of random numbers that all noise is taken from.
NOISE = 2**20


def draw_erasing(
    height: int, width: int, probability: float, random: np.random.Generator
) -> tuple[int, int, int, int, int]:
    """Return a box to erase (top, left, height, width) and the offset of its noise.

    The box is smaller than the image; its area is uniform in `AREA`, its aspect ratio log-uniform
    in `RATIO`, its position uniform. All are 0, with 1 - `probability` or if ten boxes exceed
    the image, where nothing is erased.
    """
    if random.random() >= probability:
        return 0, 0, 0, 0, 0
    for _ in range(ATTEMPTS):
        area = random.uniform(*AREA) * height * width
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if rows < height and columns < width:
            top, left = random.integers((height - rows + 1, width - columns + 1)).tolist()
            return top, left, rows, columns, int(random.integers(NOISE))
    return 0, 0, 0, 0, 0


@functools.lru_cache(maxsize=4)
def noise(count: int) -> np.ndarray:
    """Return `NOISE` standard normal numbers and their first `count` ones again, float32.

    The noise of an image begins at a random offset. It is the same on every backend and device,
    whose own generators differ.
    """
    numbers = np.random.default_rng(0).standard_normal(NOISE, dtype="float32")
    return np.concatenate([numbers, np.resize(numbers, count)])


def erase_box(image: np.ndarray, box: Sequence[int]) -> None:
    """Replace a box, as of `draw_erasing`, of a normalized float32 image by noise, in place."""
    top, left, rows, columns, offset = box
    numbers = noise(image.size)[offset : offset + image.size].reshape(image.shape)
    window = slice(top, top + rows), slice(left, left + columns)
    image[window] = numbers[window]


def erase(image: np.ndarray, probability: float, random: np.random.Generator) -> None:
    """Replace a random box of a normalized image by standard normal noise, in place."""
    erase_box(image, draw_erasing(*image.shape[:2], probability, random))
