"""Random crops of an image."""

import math

import numpy as np
from PIL import Image

from keras_vitx.data.images import resize
from keras_vitx.pixels import Pixels

ATTEMPTS = 10
FILTERS = {
    "bicubic": (Image.Resampling.BICUBIC,),
    "bilinear": (Image.Resampling.BILINEAR,),
    "random": (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC),
}
"""The filters of `Augmentation.train_interpolation`, one of which is drawn at each use."""


def resized_crop(
    image: Pixels | Image.Image,
    size: tuple[int, int],
    random: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    interpolation: str = "bicubic",
) -> Pixels:
    """Crop a box of pixels, or of an RGB picture of Pillow, as from `random_box`, and resize it."""
    pillow = isinstance(image, Image.Image)
    height, width = image.size[::-1] if pillow else image.shape[:2]
    top, left, rows, columns = random_box(height, width, random, scale, ratio)
    resample = draw_filter(interpolation, random)
    if pillow:
        box = image.crop((left, top, left + columns, top + rows))
        return np.asarray(box.resize(size[::-1], resample))
    return resize(image[top : top + rows, left : left + columns], size, resample)


def draw_filter(interpolation: str, random: np.random.Generator) -> Image.Resampling:
    """Return a random one of the filters of that name in `FILTERS`."""
    filters = FILTERS[interpolation]
    return filters[random.integers(len(filters))] if len(filters) > 1 else filters[0]


def random_box(
    height: int,
    width: int,
    random: np.random.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Return a random box (top, left, height, width) within an image, in pixels.

    The area, as a fraction of the image's, is uniform in `scale`, the aspect ratio (width over
    height) log-uniform in `ratio`. If ten boxes exceed the image, the largest centered one is used
    (Szegedy et al., 2015, Section 6, as in torchvision and timm).
    """
    for _ in range(ATTEMPTS):
        area = random.uniform(*scale) * height * width
        aspect = math.exp(random.uniform(*map(math.log, ratio)))
        rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = random.integers((height - rows + 1, width - columns + 1)).tolist()
            return top, left, rows, columns
    rows = min(height, max(round(width / ratio[0]), 1))
    columns = min(width, max(round(height * ratio[1]), 1))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def random_shift(image: Pixels, random: np.random.Generator) -> Pixels:
    """Shift an image by up to an eighth, with a black border."""
    height, width = image.shape[:2]
    rows, columns = height // 8, width // 8
    padded = np.pad(image, [(rows, rows), (columns, columns), (0, 0)])
    top, left = random.integers((2 * rows + 1, 2 * columns + 1)).tolist()
    return padded[top : top + height, left : left + width]
