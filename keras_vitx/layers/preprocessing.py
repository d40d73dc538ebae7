"""Images made ready inside a model, so that they can be exported along with it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.fast import has_symbolic_sizes
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import nearest


def _bilinear(xp, x):
    return xp.maximum(1 - x, 0)


def _bicubic(xp, x):
    # Keys' kernel with a = -1/2, as Pillow has it.
    far = xp.where(x < 2, 2 + x * (-4 + x * (2.5 - 0.5 * x)), 0)
    return xp.where(x < 1, 1 + x * x * (1.5 * x - 2.5), far)


KERNELS = {"bilinear": _bilinear, "bicubic": _bicubic}
"""Weight of a pixel by its distance from the place that is asked for, 0 or more."""

HALF_BITS = 11
"""Half the bits of Pillow's weights, which are whole numbers over 2^22."""


@register
class ImagePreprocessing(Layer):
    r"""The evaluation transform as a layer: $(c / 255 - mean) / std$ of the image's centre $c$.

    An image is resized, antialiased and in its proportions, so that it covers
    `size / crop_ratio`; its centre is cropped. A crop ratio above 1 leaves a
    border of black pixels, which is normalised like all others: receptive field
    calibration (Refiner, Section 4.4; the ratio there is 1.10 to 1.13).

    Resize, crop and border are one product along each axis, $A_h x A_w^T$: a row of
    $A$ holds the weights of one pixel of the result, zeros for one of the border.
    Pixels are rounded to the 256 levels after each product, as Pillow rounds
    them, so that the result is that of `preprocess_input` and of timm to the
    last level. (Pillow 13 takes the axes of an image more than twice as high as
    wide in the other order: a few of its pixels differ, by up to some levels.)
    No gradient passes.

    Input: uint8 or floats in 0..255, `(batch, height, width, channels)` of any
    height and width; under TensorFlow they may be unknown in an exported graph,
    too. Output: float32 `(batch, *size, channels)`, in every precision.

    Args:
        size: `(height, width)` of the result, in pixels.
        mean: Mean of each channel, for values in 0..1.
        std: Standard deviation, likewise.
        crop_ratio: Share of the resized image's shorter side that is kept.
        interpolation: "bicubic" or "bilinear".

    Raises:
        ValueError: for an argument out of its range, and for images of other channels.
    """

    takes_pixels = True

    def __init__(
        self,
        size: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        crop_ratio: float = 1.0,
        interpolation: str = "bicubic",
        **kwargs,
    ):
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.size, self.mean, self.std = tuple(size), tuple(mean), tuple(std)
        self.crop_ratio = crop_ratio
        self.interpolation = interpolation
        if len(self.size) != 2 or not all(isinstance(n, int) and n > 0 for n in self.size):
            raise ValueError(f"`size` must be a height and a width in pixels. Received: {size!r}.")
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"`mean` and `std` must have one value a channel. Received: {mean!r} and {std!r}."
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"`std` must be positive. Received: {std!r}.")
        if not 0 < crop_ratio <= min(self.size):
            raise ValueError(
                "`crop_ratio` must be above 0, and leave a pixel of the image. "
                f"Received: {crop_ratio!r}."
            )
        if interpolation not in KERNELS:
            raise ValueError(
                f"`interpolation` {interpolation!r} is unknown. {nearest(interpolation, KERNELS)}"
            )

    @classmethod
    def of(cls, model: Any, **changes: Any) -> "ImagePreprocessing":
        """Return the layer that makes images ready for `model`.

        Args:
            model: A model of the zoo, or any object with its `input_shape` and
                `preprocessing`.
            **changes: Arguments that replace the model's, e.g. `crop_ratio=1.13`.

        Raises:
            ValueError: if one of the two is missing.
        """
        images = ModelInput.of(model)
        return cls(**{"size": images.size, **images.preprocessing.to_dict(), **changes})

    def build(self, input_shape):
        if len(input_shape) != 4 or input_shape[-1] != len(self.mean):
            raise ValueError(
                f"Images must be (batch, height, width, {len(self.mean)}), a channel for each "
                f"value of `mean`. Received: {tuple(input_shape)}."
            )

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.size, input_shape[-1])

    def call(self, images):
        rows, columns = self._matrices(*ops.shape(images)[1:3])
        x = ops.clip(ops.round(ops.cast(images, "float32")), 0, 255)
        x = _to_levels(ops.einsum("bhwc,kvw->kbhvc", x, columns))
        x = _to_levels(ops.einsum("bhvc,kuh->kbuvc", x, rows))
        mean, std = (ops.convert_to_tensor(each, "float32") for each in (self.mean, self.std))
        return (x / 255.0 - mean) / std

    def _matrices(self, *sides):
        """Return the weights along the height and along the width, `(2, size, side)` each."""
        if all(isinstance(side, int) for side in sides):
            xp, sides = np, tuple(map(np.float64, sides))
        elif has_symbolic_sizes():
            xp, sides = ops, tuple(ops.cast(side, "float64") for side in sides)
        else:
            raise ValueError(
                "Images of unknown height and width need the TensorFlow backend. "
                f"Received: {sides}."
            )
        scaled = scaled_size(xp, sides, self.size, self.crop_ratio)
        return [
            ops.cast(_weights(xp, *numbers, KERNELS[self.interpolation]), "float32")
            for numbers in zip(sides, scaled, self.size, strict=True)
        ]


def scaled_size(xp, image_size, size, crop_ratio):
    """Return the height and the width that an image is resized to, before the crop.

    Args:
        xp: NumPy for numbers, `keras.ops` for tensors.
        image_size: Height and width, of float64.
        size: Height and width of the crop.
        crop_ratio: The share that is kept.
    """
    height, width = image_size
    target_height, target_width = (math.floor(side / crop_ratio) for side in size)
    # timm rounds down for a square, and to the nearest number otherwise.
    if target_height == target_width:
        shorter = xp.minimum(height, width)
        return target_height * height // shorter, target_width * width // shorter
    ratio = xp.minimum(height / target_height, width / target_width)
    return xp.round(height / ratio), xp.round(width / ratio)


def _weights(xp, side, scaled, target, kernel):
    """Return the weights `(2, target, side)` by which the centre of a resized axis is read.

    They are Pillow's whole numbers over 2^22, as coarse parts over 2^11 and what
    remains: float32, and even TF32, holds the products of each without rounding.
    """
    border = (target - scaled) // 2
    start = xp.where(scaled < target, -border, xp.round((scaled - target) / 2))
    places = xp.arange(target, dtype="float64") + start
    # In a shrunk image the kernel is stretched over all the pixels that make one.
    step = side / scaled
    centres = (places + 0.5) * step
    pixels = xp.arange(side, dtype="float64") + 0.5
    weights = kernel(xp, xp.abs(pixels - centres[:, None]) / xp.maximum(step, 1.0))
    inside = ((places >= 0) & (places < scaled))[:, None]
    total = xp.where(inside, xp.sum(weights, axis=1, keepdims=True), 1.0)
    weights = xp.round(xp.where(inside, weights / total, 0.0) * 4.0**HALF_BITS)
    coarse = xp.round(weights / 2.0**HALF_BITS)
    return xp.stack([coarse, weights - coarse * 2.0**HALF_BITS])


def _to_levels(sums):
    """Round sums of weighted pixels, the coarse and the fine, to 0..255; halves go up."""
    coarse, fine, half = sums[0], sums[1], 2.0**HALF_BITS
    whole = ops.floor(coarse / half)
    rest = (coarse - whole * half) * half + fine
    return ops.clip(whole + ops.floor(rest / half**2 + 0.5), 0, 255)
