"""Random erasing: a box of an image is replaced by noise.

Zhong et al., 2020, with timm's defaults and mode "pixel". `keras.layers.RandomErasing` of
Keras 3.15 differs: the height and the width of its box are drawn independently, without limits
of the aspect ratio, and a `factor` p erases with probability p / 2, as the probability is itself
uniform in [0, p].
"""

import math

import numpy as np

from keras_vitx.data.augmentation.windows import ATTEMPTS

# The box, as a fraction of the image area, and its aspect ratio (height over width).
AREA = (0.02, 1 / 3)
RATIO = (0.3, 1 / 0.3)


def erasing_box(
    height: int, width: int, random: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """Return a random box (top, left, height, width) in pixels, smaller than the image.

    Its area is uniform in `AREA`, its aspect ratio log-uniform in `RATIO`, its position uniform.
    None if ten boxes all exceed the image.
    """
    for _ in range(ATTEMPTS):
        area = random.uniform(*AREA) * height * width
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if rows < height and columns < width:
            top, left = random.integers((height - rows + 1, width - columns + 1)).tolist()
            return top, left, rows, columns
    return None


def erase(image: np.ndarray, probability: float, random: np.random.Generator) -> None:
    """Replace a random box of an image by standard normal noise, in place.

    Args:
        image: float32 (height, width, channels), normalized.
        probability: Probability that a box is erased.
        random: Source of the box and the noise.
    """
    if random.random() >= probability:
        return
    box = erasing_box(*image.shape[:2], random)
    if box is not None:
        top, left, rows, columns = box
        noise = random.standard_normal((rows, columns, image.shape[-1]), dtype="float32")
        image[top : top + rows, left : left + columns] = noise
