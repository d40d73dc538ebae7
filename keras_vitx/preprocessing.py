"""How images are prepared for a model: one record, shared by all parts of the package."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

from keras_vitx.text import nearest

INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "box", "hamming", "nearest")


@dataclass(frozen=True)
class Preprocessing:
    """The evaluation transform of a model: resize, center crop, `(x - mean) / std`.

    Attributes:
        mean: Mean per channel, for pixel values in 0..1.
        std: Standard deviation per channel, for pixel values in 0..1.
        crop_ratio: Fraction of the resized image's shorter side that is kept. Above 1,
            the image is padded with black pixels.
        interpolation: Resampling filter of the resize, one of `INTERPOLATIONS`.

    Raises:
        ValueError: if a value is out of range; the message names the argument.
    """

    mean: Sequence[float]
    std: Sequence[float]
    crop_ratio: float = 1.0
    interpolation: str = "bicubic"

    def __post_init__(self):
        for name in ("mean", "std"):
            try:
                values = tuple(map(float, getattr(self, name)))
            except (TypeError, ValueError):
                values = ()
            if not values or not all(map(math.isfinite, values)):
                raise ValueError(
                    f"`{name}` must be one finite number per channel. "
                    f"Received: {getattr(self, name)!r}."
                )
            object.__setattr__(self, name, values)
        if len(self.mean) != len(self.std):
            raise ValueError(
                "`mean` and `std` must have one value per channel. "
                f"Received: mean={self.mean}, std={self.std}."
            )
        if min(self.std) <= 0:
            raise ValueError(f"`std` must be positive. Received: {self.std}.")
        if not isinstance(self.crop_ratio, Real) or not 0 < self.crop_ratio < math.inf:
            raise ValueError(f"`crop_ratio` must be above 0. Received: {self.crop_ratio!r}.")
        object.__setattr__(self, "crop_ratio", float(self.crop_ratio))
        if self.interpolation not in INTERPOLATIONS:
            hint = nearest(self.interpolation, INTERPOLATIONS)
            raise ValueError(f"`interpolation` {self.interpolation!r} is unknown. {hint}")

    @classmethod
    def of(cls, value: "Preprocessing | Mapping[str, Any]") -> "Preprocessing":
        """Return `value`, a `Preprocessing` or a dictionary of its attributes, as a record.

        Raises:
            ValueError: if `value` is neither, or lacks `mean` or `std`.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not {"mean", "std"} <= set(value):
            raise ValueError(
                "`preprocessing` must be a `Preprocessing`, or a dictionary with `mean` and "
                f"`std`. Received: {value!r}."
            )
        for name in sorted(value.keys() - cls.__dataclass_fields__.keys()):
            hint = nearest(name, cls.__dataclass_fields__)
            raise ValueError(f"`preprocessing` has no entry {name!r}. {hint}")
        return cls(**value)

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

MAX_VALUES = 1 << 25
"""Values (pixels times channels) that an image may be resized to, whatever a file claims."""


@dataclass(frozen=True)
class ModelInput:
    """The images that a model takes, which can stand in for it wherever images are prepared.

    `input_shape` is `(None, height, width, channels)`.
    """

    input_shape: tuple[int | None, ...]
    preprocessing: Preprocessing

    def __post_init__(self):
        crop_ratio = self.preprocessing.crop_ratio
        values = math.prod(side or 1 for side in self.input_shape[1:])
        if values > MAX_VALUES * min(crop_ratio, 1) ** 2:
            raise ValueError(
                f"`model` must take images that are resized to at most {MAX_VALUES:,} values. "
                f"Received: images of shape {self.input_shape[1:]} and crop_ratio={crop_ratio}."
            )

    @classmethod
    def of(cls, model: Any) -> "ModelInput":
        """Read `input_shape` and `preprocessing` of a model, or of any object that has them.

        Raises a ValueError if sizes are unknown, or `preprocessing` is missing or has other
        channels.
        """
        shape = getattr(model, "input_shape", None)
        if not isinstance(shape, tuple) or len(shape) != 4 or None in shape[1:]:
            raise ValueError(
                "`model` must have an input of shape (None, height, width, channels). Received: "
                f"{shape}."
            )
        preprocessing = getattr(model, "preprocessing", None)
        if preprocessing is None:
            raise ValueError(
                "model: it has no `preprocessing`, the mean and std with which images are "
                "normalized. Models of keras_vitx have one: for a model cut from one, set "
                "`model.preprocessing = whole.preprocessing`; for another model, "
                "`model.preprocessing = keras_vitx.Preprocessing(mean, std)`."
            )
        preprocessing = Preprocessing.of(preprocessing)
        if len(preprocessing.mean) != shape[-1]:
            raise ValueError(
                f"`model` must have a mean and a std for each of {shape[-1]} channels. Received: "
                f"{preprocessing.mean} and {preprocessing.std}."
            )
        return cls(shape, preprocessing)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.input_shape[1:3]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.input_shape[-1]
