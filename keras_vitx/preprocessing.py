"""How images are prepared for a model: one record, shared by all parts of the package."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from keras_vitx.checks import PositiveFloat, check, check_argument, from_fields

Interpolation = Literal["bicubic", "bilinear", "lanczos", "box", "hamming", "nearest"]


@dataclass(frozen=True)
class Preprocessing:
    """The evaluation transform of a model: resize, center crop, `(x - mean) / std`.

    Attributes:
        mean: Mean per channel, for pixel values in 0..1.
        std: Standard deviation per channel, for pixel values in 0..1.
        crop_ratio: Fraction of the resized image's shorter side that is kept. Above 1,
            the image is padded with black pixels.
        interpolation: Resampling filter of the resize: "bicubic", "bilinear", "lanczos", "box",
            "hamming" or "nearest".

    Raises:
        ValueError: if a value is out of range; the message names the argument.
    """

    mean: Sequence[float]
    std: Sequence[float]
    crop_ratio: float = 1.0
    interpolation: Interpolation = "bicubic"

    def __post_init__(self):
        mean, std = (tuple(map(float, values)) for values in (self.mean, self.std))
        is_valid = len(mean) == len(std) > 0 and all(map(math.isfinite, mean + std))
        rule = "`mean` must be a finite number per channel, and `std` a positive one."
        check(is_valid and min(std) > 0, rule, (mean, std))
        check_argument("crop_ratio", self.crop_ratio, PositiveFloat)
        check_argument("interpolation", self.interpolation, Interpolation)
        for name, value in (("mean", mean), ("std", std), ("crop_ratio", float(self.crop_ratio))):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: "Preprocessing | Mapping[str, Any]") -> "Preprocessing":
        """Return `value`, a `Preprocessing` or a dictionary of its attributes, as a record.

        Raises:
            ValueError: if `value` is neither, or lacks `mean` or `std`, or has other entries.
        """
        if isinstance(value, cls):
            return value
        rule = "`preprocessing` must be a `Preprocessing`, or a dictionary with `mean` and `std`."
        check(isinstance(value, Mapping) and {"mean", "std"} <= set(value), rule, value)
        return from_fields(cls, value)

    @classmethod
    def pixels(cls, channels: int = 3, **values: Any) -> "Preprocessing":
        """Return that of a model that takes pixels in 0..255; `values` are its other attributes."""
        return cls((0.0,) * channels, (1 / 255,) * channels, **values)

    @property
    def takes_pixels(self) -> bool:
        """Whether the values stay in 0..255."""
        return not any(self.mean) and all(math.isclose(value, 1 / 255) for value in self.std)

    def replace(self, **changes: Any) -> "Preprocessing":
        """Return a copy with some values changed, e.g. `.replace(crop_ratio=1.13)`."""
        return self.of({**asdict(self), **changes})

    def for_channels(self, channels: int) -> "Preprocessing":
        """Return a copy for images of `channels` channels.

        If the number differs, each channel gets the mean over the channels.
        """
        if channels == len(self.mean):
            return self
        mean, std = ((sum(values) / len(values),) * channels for values in (self.mean, self.std))
        return replace(self, mean=mean, std=std)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as a JSON-serializable dictionary, which `of` reads back."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}


IMAGENET_DEFAULT = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's pixels."""

IMAGENET_INCEPTION = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and deviation of 0.5, which map pixels to -1..1 (timm's `IMAGENET_INCEPTION_MEAN`)."""


def check_levels(dtype: object, low: float, high: float) -> None:
    """Raise a ValueError unless values are numbers in 0..255, or floats in 0..1."""
    if str(dtype) == "bool" or not (low >= 0 and high <= 255):  # Also rejects NaN.
        rule = "`images` must be numbers in 0..255, or floats in 0..1."
        raise ValueError(f"{rule} Received: {dtype} in {low}..{high}.")


MAX_VALUES = 1 << 25
"""Values (pixels times channels) that an image may be resized to, whatever a file claims."""


def scaled_size(xp, image_size, size, crop_ratio):
    """Return the height and width, in float64, to which an image is resized before the crop.

    `xp` is NumPy for numbers, `keras.ops` for tensors; `size` is that of the crop.
    """
    # Not by `keras.ops.minimum`, which rounds float64 to float32 and so moves a crop by a pixel.
    height, width = image_size
    target_height, target_width = (math.floor(side / crop_ratio) for side in size)
    # timm rounds down for a square crop, and to the nearest integer otherwise.
    if target_height == target_width:
        shorter = xp.where(height < width, height, width)
        # Some runtimes multiply by the reciprocal (openvinotoolkit/openvino#9561), where 82 / 41
        # is below 2: with a half, no whole number is at the edge of the one below.
        sides = (target_height * height + 0.5, target_width * width + 0.5)
        return sides[0] // shorter, sides[1] // shorter
    ratios = height / target_height, width / target_width
    ratio = xp.where(ratios[0] < ratios[1], *ratios)
    return xp.round(height / ratio), xp.round(width / ratio)


@dataclass(frozen=True)
class ModelInput:
    """The images that a model takes, which can stand in for it wherever images are prepared.

    `input_shape` is `(None, height, width, channels)`.
    """

    input_shape: tuple[int | None, ...]
    preprocessing: Preprocessing

    @classmethod
    def of(cls, model: object, any_size: bool = False) -> "ModelInput":
        """Read what a model, or any object of `input_shape` and `preprocessing`, takes.

        With `any_size`, height and width may be None. Raises a ValueError if sizes or preprocessing
        are unknown, or the numbers of channels differ.
        """
        if isinstance(model, cls):
            return model
        shape = getattr(model, "input_shape", None)
        is_shape = isinstance(shape, tuple) and len(shape) == 4
        is_known = is_shape and None not in (shape[-1:] if any_size else shape[1:])
        rule = "`model` must have an input of shape (None, height, width, channels)."
        check(is_known, rule, shape)
        stated = getattr(model, "preprocessing", None)
        if stated is None:
            raise ValueError(
                "`model.preprocessing` must be set: `keras_vitx.Preprocessing(mean, std)`, "
                f"`keras_vitx.Preprocessing.pixels({shape[-1]})` for pixels in 0..255, or that of "
                "the model that it was made from. Received: a model without."
            )
        preprocessing = Preprocessing.of(stated)
        rule = f"`model` must have a mean and a std for each of {shape[-1]} channels."
        check(len(preprocessing.mean) == shape[-1], rule, (preprocessing.mean, preprocessing.std))
        return cls(shape, preprocessing)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.input_shape[1:3]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.input_shape[-1]
