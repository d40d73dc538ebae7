"""Images for the comparison of an exported file with its model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from PIL import Image

from keras_vitx import data
from keras_vitx.keras_internals import sublayers

COUNT = 8
"""Number of photographs."""

SIZES = ((96, 128), (160, 112))
"""Heights and widths of the random images for models that take any size."""


def batches_for(model: keras.Model, images: Any = None) -> list[np.ndarray]:
    """Return `images`, or others, as batches of the model's input dtype.

    Args:
        model: The model.
        images: As in `verify`. None means photographs of the shipped Fashion-MNIST sample,
            or random images where these do not fit: models that take any size, or neither
            one nor three channels.

    Raises:
        ValueError: if the images do not fit the model.
    """
    count, *shape = model.inputs[0].shape
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = "float32" if "float" in dtype else dtype
    if images is None:
        if None not in shape and shape[-1] in (1, 3) and dtype != "int8":
            return [_photographs(model, count or COUNT, shape).astype(dtype)]
        sizes = SIZES if None in shape else SIZES[:1]
        return [_random_images(model, (count or 3, *shape), size, dtype) for size in sizes]
    several = isinstance(images, Sequence) and all(np.ndim(batch) == 4 for batch in images)
    batches = [ops.convert_to_numpy(batch) for batch in (images if several else [images])]
    for batch in batches:
        fits = batch.ndim == 4 and all(
            side in (None, given) for side, given in zip((count, *shape), batch.shape, strict=True)
        )
        if not fits or (count is None and len(batch) < 2):
            sides = ", ".join("any" if side is None else str(side) for side in shape)
            raise ValueError(
                f"images should be ({count or '2 or more'}, {sides}), not {batch.shape}."
            )
        if dtype != "float32" and not np.array_equal(batch.astype(dtype), batch):
            raise ValueError(
                f"images should hold values of {dtype}, the dtype that the model takes."
            )
    return [batch.astype(dtype) for batch in batches]


def takes_pixels(model: keras.Model) -> bool:
    """Return whether the model takes values in 0..255."""
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float" not in dtype or any(
        isinstance(layer, keras.layers.Rescaling) or getattr(layer, "takes_pixels", False)
        for layer in sublayers(model)
    )


def _photographs(model, count, shape):
    """Return images of Fashion-MNIST in the model's size, normalized unless it takes pixels."""
    found = data.open_source("fashion_mnist").test.images[:count]
    height, width, channels = shape
    mode = "RGB" if channels == 3 else "L"
    pixels = [
        np.asarray(Image.fromarray(image[..., 0]).convert(mode).resize((width, height)))
        for image in found
    ]
    pixels = np.stack(pixels).reshape(count, *shape).astype("float32")
    if takes_pixels(model):
        return pixels
    known = getattr(model, "preprocessing", None)
    mean, std = (known.mean, known.std) if known else ([0.5], [0.5])
    return (pixels / 255 - np.float32(mean)) / np.float32(std)


def _random_images(model, shape, size, dtype):
    random = np.random.default_rng(0)
    shape = [known or made for known, made in zip(shape, (None, *size, None), strict=True)]
    if not takes_pixels(model):
        return random.standard_normal(shape, "float32")
    return random.integers(0, 128 if dtype == "int8" else 256, shape).astype(dtype)
