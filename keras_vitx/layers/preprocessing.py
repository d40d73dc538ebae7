"""Preprocessing inside a model, so that it is exported with it."""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vitx.checks import check, check_argument
from keras_vitx.layers.base import Layer, register
from keras_vitx.preprocessing import ModelInput, Preprocessing, check_levels, scaled_size


def _bicubic(xp, x):
    # Keys' kernel with a = -1/2, as in Pillow.
    far = xp.where(x < 2, 2 + x * (-4 + x * (2.5 - 0.5 * x)), 0)
    return xp.where(x < 1, 1 + x * x * (1.5 * x - 2.5), far)


# Weight of a pixel by its distance from the point sampled. `ops.maximum` would round to float32.
KERNELS = {"bilinear": lambda xp, x: xp.where(x < 1, 1 - x, 0), "bicubic": _bicubic}
REACH = 2  # Distance at which every kernel is 0.
HALF_BITS = 11  # Half the bits of Pillow's weights, which are integers over 2^22.


@register
class ImagePreprocessing(Layer):
    r"""The evaluation transform as a layer: $(c / 255 - mean) / std$ for the center crop $c$.

    Each image is resized with antialiasing, keeping its aspect ratio, until it covers
    `size / crop_ratio`, and its center is cropped. A crop ratio above 1 leaves a border of black
    pixels: receptive field calibration (Refiner, Section 4.4, with ratios from 1.10 to 1.13).

    Resize, crop and border are one matrix product per axis, $A_h x A_w^T$, with the weights of one
    output pixel in each row of $A$. Each product is rounded to the 256 levels of a byte, so the
    result equals that of Pillow, `preprocess_input` and timm to the last level. (Pillow 13 resizes
    images more than twice as high as wide along the other axis first, so a few of their pixels
    differ.) There are no gradients. Images that have the size of the output, with a `crop_ratio` of
    1, are only normalized, which has gradients.

    Input: uint8 or floats in 0..255, `(batch, height, width, channels)`, a channel for each mean.
    Output: float32 `(batch, *size, channels)`, whatever the precision. For images of unknown height
    and width, a graph of TensorFlow or PyTorch computes the matrices at run time; in a graph traced
    by JAX, images must have the size given to `build`.

    Args:
        size: `(height, width)` of the output, in pixels.
        mean: Mean per channel, for values in 0..1.
        std: Standard deviation per channel, for values in 0..1.
        crop_ratio: Side of the crop relative to the shorter side of the resized image.
        interpolation: "bicubic" or "bilinear".
    """

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
        transform = Preprocessing(mean, std, crop_ratio, interpolation)
        check_argument("interpolation", interpolation, Literal[tuple(KERNELS)])
        self.size, self.mean, self.std = tuple(map(int, size)), transform.mean, transform.std
        self.crop_ratio, self.interpolation = crop_ratio, interpolation
        self.image_size: tuple[int | None, int | None] = (None, None)
        self._before = Preprocessing.pixels(len(self.mean))

    @property
    def preprocessing(self) -> Preprocessing:
        """What is made of a photograph before the layer: pixels, perhaps cropped.

        The layer takes over `mean` and `std` of a normalization that is assigned.
        """
        return self._before

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        value = value or Preprocessing.pixels(len(self.mean))
        if not value.takes_pixels:
            self.mean, self.std = value.mean, value.std
            ratio, filter = value.crop_ratio / self.crop_ratio, value.interpolation
            value = value.pixels(len(value.mean), crop_ratio=ratio, interpolation=filter)
        self._before = value

    @property
    def preprocessing_of_outputs(self) -> Preprocessing:
        """What is made of a photograph until after the layer: a normalized image."""
        ratio = self._before.crop_ratio * self.crop_ratio
        return self._before.replace(mean=self.mean, std=self.std, crop_ratio=ratio)

    @classmethod
    def of(cls, model: Any, **changes: Any) -> "ImagePreprocessing":
        """Return the layer that preprocesses images for `model`, with changed arguments."""
        images = ModelInput.of(model)
        return cls(**{"size": images.size, **images.preprocessing.to_dict(), **changes})

    def build(self, input_shape):
        is_shape = len(input_shape) == 4 and input_shape[-1] == len(self.mean)
        rule = f"Images must be (n, height, width, {len(self.mean)}), one channel for each `mean`."
        check(is_shape, rule, tuple(input_shape))
        self.image_size = tuple(input_shape[1:3])
        if None not in self.image_size:
            self.constants = self._matrices(np, *self.image_size)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.size, input_shape[-1])

    def call(self, images):
        sides = ops.shape(images)[1:3]
        are_numbers = all(isinstance(side, int) for side in sides)
        is_known = self.image_size == self.size or are_numbers
        if self.crop_ratio == 1 and is_known and _are_equal(sides, self.size):
            return self._normalized(ops.cast(images, "float32"))
        if are_numbers and sides != self.image_size:
            matrices = self._matrices(np, *sides)
        elif None not in self.image_size and _are_equal(sides, self.image_size):
            matrices = self.constants
        else:  # Tensors under TensorFlow, symbols under PyTorch.
            matrices = self._matrices(ops, *sides)
        (rows_seen, rows), (columns_seen, columns) = matrices
        images = images[:, rows_seen, columns_seen]
        rows, columns = (ops.cast(matrix, "float32") for matrix in (rows, columns))
        x = ops.cast(images, "float32")
        if "float" in keras.backend.standardize_dtype(images.dtype):
            x = ops.clip(ops.round(x), 0, 255)
        x = _to_levels(ops.einsum("bhwc,kvw->kbhvc", x, columns))
        x = _to_levels(ops.einsum("bhvc,kuh->kbuvc", x, rows))
        return self._normalized(x)

    def _normalized(self, x):
        mean, std = (ops.convert_to_tensor(values, "float32") for values in (self.mean, self.std))
        return (x / 255.0 - mean) / std

    def _matrices(self, xp, *sides):
        """Return `_weights` of the height and of the width, by NumPy or as `keras.ops`."""
        half = xp.array(0.5, "float64")
        # Counted in integers: converters make float16, which ends at 2048, of float32.
        pixels = [xp.add(xp.arange(side, dtype="int64"), half) for side in sides]
        counts = [centers[-1] + 0.5 for centers in pixels]
        scaled = scaled_size(xp, counts, self.size, self.crop_ratio)
        kernel = KERNELS[self.interpolation]
        return [
            _weights(xp, *numbers, kernel)
            for numbers in zip(sides, pixels, counts, scaled, self.size, strict=True)
        ]


def _are_equal(sides, others):
    """Compare sides that may be symbols or tensors."""
    try:
        return all(bool(side == other) for side, other in zip(sides, others, strict=True))
    except Exception:  # JAX can't decide what a symbol equals.
        return False


def _weights(xp, side, pixels, count, scaled, target, kernel):
    """Return the slice of the pixels seen, and their weights `(2, target, pixels)`, of one axis.

    `count` is `side` in float64. Pillow's weights, integers over 2^22, are split into a coarse part
    over 2^11 and the rest, because float32, and even TF32, holds the products of each part exactly.
    """
    border = (target - scaled) // 2
    start = xp.where(scaled < target, -border, xp.round((scaled - target) / 2))
    positions = xp.arange(target, dtype="float64") + start
    # When shrinking, the kernel is stretched over all input pixels of an output pixel.
    step = count / scaled
    width = xp.where(step > 1, step, 1.0)
    centers = (positions + 0.5) * step
    seen = slice(None)
    if xp is np or xp.is_tensor(side):
        # Not resized where it will be cropped. (PyTorch's symbols do not slice.)
        ends = centers[0] - REACH * width, centers[-1] + REACH * width + 1
        ends = (xp.floor(xp.clip(end, 0, count)) for end in ends)
        seen = slice(*(int(end) if xp is np else xp.cast(end, "int32") for end in ends))
        pixels = pixels[seen]
    weights = kernel(xp, xp.abs(pixels - centers[:, None]) / width)
    inside = ((positions >= 0) & (positions < scaled))[:, None]
    total = xp.where(inside, xp.sum(weights, axis=1, keepdims=True), 1.0)
    weights = xp.round(xp.where(inside, weights / total, 0.0) * 4.0**HALF_BITS)
    coarse = xp.round(weights / 2.0**HALF_BITS)
    # Divided here, so that sums of pixels stay in float16's range, whose largest number is 65504.
    return seen, xp.stack([coarse, weights - coarse * 2.0**HALF_BITS]) / 2.0**HALF_BITS


def _to_levels(sums):
    """Add coarse and fine sums of weighted pixels and round to 0..255, halves up."""
    coarse, fine = sums[0], sums[1] / 2.0**HALF_BITS
    whole = ops.floor(coarse)
    return ops.clip(whole + ops.floor(coarse - whole + fine + 0.5), 0, 255)


def preprocess_tensor(images: Any, model: Any) -> Any:
    """Return the result of `keras_vitx.preprocess_input` for a tensor of the backend."""
    if isinstance(images, keras.KerasTensor):
        return ImagePreprocessing.of(model)(images)
    layer = ImagePreprocessing.of(model, name="preprocessing")
    x, dtype = ops.cast(images, "float32"), keras.backend.standardize_dtype(images.dtype)
    with contextlib.suppress(TypeError, RuntimeError):  # In a graph, tensors have no values.
        check_levels(dtype, *map(ops.convert_to_numpy, (ops.min(x), ops.max(x))))
    x = x if "int" in dtype else x * ops.where(ops.max(x) <= 1, 255.0, 1.0)
    return layer.call(x) if len(x.shape) == 4 else layer.call(x[None])[0]
