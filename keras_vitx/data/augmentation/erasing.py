"""Random erasing: replaces a box of an image by noise.

Zhong et al., 2020, with timm's defaults and mode "pixel". In `keras.layers.RandomErasing` of Keras
3.15 the aspect ratio has no limits, and a `factor` p erases with probability p / 2.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from keras_vitx.data.augmentation.windows import ATTEMPTS
from keras_vitx.pixels import NOISE, noise

# Area of the box as a fraction of the image (uniform); height over width (log-uniform).
AREA = (0.02, 1 / 3)
RATIO = (0.3, 1 / 0.3)


def draw_erasing(
    height: int, width: int, probability: float, random: np.random.Generator
) -> tuple[int, int, int, int, int]:
    """Return a box to erase, in pixels (top, left, height, width), and the offset of its noise.

    All are 0 if nothing is erased, also after ten boxes that exceed the image.
    """
    if random.random() < probability:
        for _ in range(ATTEMPTS):
            area = random.uniform(*AREA) * height * width
            ratio = math.exp(random.uniform(*map(math.log, RATIO)))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if rows < height and columns < width:
                top, left = random.integers((height - rows + 1, width - columns + 1)).tolist()
                return top, left, rows, columns, int(random.integers(NOISE))
    return 0, 0, 0, 0, 0


def erase_box(image: Float32[np.ndarray, "height width channels"], box: Sequence[int]) -> None:
    """Replace a box of a normalized image by noise, in place; see `draw_erasing`.

    By slices .1 ms for an image of 224 x 224; by the mask for tensors (`pixels.unpack_images`) 2.9.
    """
    top, left, rows, columns, offset = box
    table = noise(image.shape)
    places = (offset + np.arange(top, top + rows)) % len(table)
    numbers = table[places].reshape(rows, *image.shape[1:])
    image[top : top + rows, left : left + columns] = numbers[:, left : left + columns]
