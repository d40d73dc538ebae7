"""Images as they cross to a device: uint8 pixels, and what makes the input of a model of them.

A dictionary of arrays with a row per image, so that it is split over devices as images are:

- `"pixels"`: uint8 `(n, height, width, channels)`;
- `"moments"`: float32 `(n, 2, channels)`, mean and deviation for values in 0..1, unless the model
  takes pixels;
- `"boxes"`: int32 `(n, 5)`, if images are erased: a box of noise, as `augmentation.draw_erasing`.
"""

import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from keras_vitx.backend import constant
from keras_vitx.preprocessing import Preprocessing

Pixels = UInt8[np.ndarray, "_height _width channels"]
"""The pixels of an image."""

# A table of noise, read at random offsets, is the same on every backend and device.
NOISE = 2**20


@functools.lru_cache(maxsize=4)
def noise(shape: tuple[int, int, int]) -> Float32[np.ndarray, "rows row"]:
    """Return rows of images of a shape, of standard normal float32 numbers, about `NOISE` in all.

    The noise of an image begins at the row of its offset; whole rows are read on a device without
    an index for each number.
    """
    row = math.prod(shape[1:])
    count = max(NOISE // row, 1)
    return np.random.default_rng(0).standard_normal((count, row), dtype="float32")


def pack_images(
    pixels: UInt8[np.ndarray, "n height width channels"],
    preprocessing: Preprocessing,
    boxes: Int32[np.ndarray, "n 5"] | None = None,
) -> dict[str, np.ndarray]:
    """Return the dictionary of some images."""
    images = {"pixels": pixels}
    if not preprocessing.takes_pixels:
        moments = np.float32((preprocessing.mean, preprocessing.std))
        images["moments"] = np.tile(moments, (len(pixels), 1, 1))
    return images if boxes is None else images | {"boxes": boxes}


def unpack_images(inputs: object) -> Any:
    """Return the images of such a dictionary, normalized and erased; other inputs as they are."""
    if not isinstance(inputs, dict) or "pixels" not in inputs:
        return inputs
    from keras import ops

    images = ops.cast(inputs["pixels"], "float32")
    if "moments" in inputs:
        mean, std = (inputs["moments"][:, i, None, None] for i in range(2))
        images = (images / 255.0 - mean) / std
    if "boxes" not in inputs:
        return images
    shape = tuple(images.shape[1:])
    # For mirrored strategies, Keras takes the shapes from the mean of the replicas, in float64.
    boxes = ops.cast(inputs["boxes"], "int32")[:, :, None]
    table = constant(images, noise, shape)
    rows, columns = ops.arange(shape[0]), ops.arange(shape[1])
    inside_rows = (rows >= boxes[:, 0]) & (rows < boxes[:, 0] + boxes[:, 2])
    inside_columns = (columns >= boxes[:, 1]) & (columns < boxes[:, 1] + boxes[:, 3])
    inside = ops.logical_and(inside_rows[:, :, None], inside_columns[:, None])
    values = ops.take(table, (boxes[:, 4] + rows) % table.shape[0], axis=0)
    return ops.where(inside[..., None], ops.reshape(values, (-1, *shape)), images)
