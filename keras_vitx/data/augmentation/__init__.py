"""Data augmentation of single images, in NumPy and Pillow.

Every step is a pure function of an image and a random generator. Keras's layers are not used: they
need batches of images of one size, and Keras 3.15 has no random resized crop.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image, ImageEnhance

from keras_vitx.checks import PositiveInt, Probability, Range, check, check_fields, from_fields
from keras_vitx.data.augmentation.rand_augment import RandAugment
from keras_vitx.data.augmentation.windows import random_shift, resized_crop
from keras_vitx.pixels import Pixels
from keras_vitx.text import nearest, needs_extra


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images: crop, flip, then RandAugment or color jitter.

    Random erasing follows after mixing and normalization.

    Attributes:
        crop: "random_resized", a random window of the original image, resized to the model's input
            size; "shift", a shift of the image at the input size by up to an eighth; or None, the
            evaluation transform.
        scale: Minimum and maximum area of a random resized crop, as a fraction of the image.
        ratio: Minimum and maximum aspect ratio, width over height, of a random resized crop.
        train_interpolation: "bicubic"; "bilinear"; or "random", one of the two per image, as in the
            released code of DeepViT and Refiner. Used by random resized crops and RandAugment's
            geometric operations, not by keras-cv's layers.
        flip: Probability of a horizontal flip.
        rand_augment: RandAugment in timm's notation, such as "m9-mstd0.5-inc1", or None.
        color_jitter: Brightness, contrast and saturation are multiplied by random factors in
            [1 - x, 1 + x], in random order. It excludes `rand_augment`.
        erasing: Probability that a box is replaced by noise (Zhong et al., 2020).
        repeats: Number of consecutive, independently augmented copies of each image in an epoch,
            whose length stays the same: it uses one in `repeats` images (repeated augmentation;
            Hoffer et al., 2020).
        by: "pillow", this module; or "keras_cv", the layers of keras-cv (but for `erasing`).

    Raises:
        ValueError: if a value is out of range; the message names the field.
    """

    crop: Literal["random_resized", "shift"] | None = "random_resized"
    scale: Annotated[Range, "(0, 1]"] = (0.08, 1.0)
    ratio: Annotated[Range, "(0, inf)"] = (3 / 4, 4 / 3)
    train_interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    flip: Probability = 0.5
    rand_augment: str | None = None
    color_jitter: Probability = 0.0
    erasing: Probability = 0.0
    repeats: PositiveInt = 1
    by: Literal["pillow", "keras_cv"] = "pillow"

    def __post_init__(self):
        for name in ("scale", "ratio"):  # Lists, if read from JSON.
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        check_fields(self)
        if self.rand_augment is not None:
            RandAugment.named(self.rand_augment)
            rule = "`color_jitter` must be 0 with `rand_augment`."
            check(not self.color_jitter, rule, self.color_jitter)

    @classmethod
    def of(cls, value: "str | Augmentation | Mapping[str, Any] | None") -> "Augmentation | None":
        """Return `value`, or an augmentation from its name in `PRESETS` or from its fields."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return from_fields(cls, value)
        rule = "`augmentation` must be an `Augmentation`, its name or None."
        check(value in PRESETS, f"{rule} {nearest(value, PRESETS)}", value)
        return PRESETS[value]

    def check(self, channels: int) -> None:
        """Raise an error if images of these channels can't be augmented.

        It is an ImportError if keras-cv is needed and not installed, else a ValueError.
        """
        colors = [name for name in ("rand_augment", "color_jitter") if getattr(self, name)]
        possible = (1, 3) if self.by == "pillow" else (3,)
        names = " and ".join(f"`{name}`" for name in colors)
        rule = f"{names} must be off for images without {possible} channels, by {self.by!r}."
        check(not colors or channels in possible, rule, channels)
        needed = ("keras_cv", "tensorflow") if self.by == "keras_cv" else ()
        if not all(map(importlib.util.find_spec, needed)):
            what = '`augmentation` by="keras_cv" needs keras-cv'
            raise ImportError(needs_extra(what, "keras-cv"))

    def pixels(
        self,
        image: Pixels,
        size: tuple[int, int],
        random: np.random.Generator,
        mean: Sequence[float],
    ) -> Pixels:
        """Apply all steps before normalization.

        The image is the original for a random resized crop, else of `size`. RandAugment uses the
        `mean`, in 0..1 per channel, beyond the image.
        """
        if self.crop == "random_resized":
            image = resized_crop(
                image, size, random, self.scale, self.ratio, self.train_interpolation
            )
        elif self.crop:
            image = random_shift(image, random)
        if random.random() < self.flip:
            image = image[:, ::-1]
        if self.rand_augment is not None:
            fill = tuple(min(255, round(255 * level)) for level in mean)
            image = RandAugment.named(self.rand_augment)(
                image, random, fill if len(fill) > 1 else fill[0], self.train_interpolation
            )
        if self.color_jitter:
            image = jitter_colors(image, self.color_jitter, random)
        return image


def jitter_colors(image: Pixels, strength: float, random: np.random.Generator) -> Pixels:
    """Multiply brightness, contrast and saturation by factors in 1 ± strength, in random order.

    The image has one or three channels.
    """
    picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = random.uniform(1 - strength, 1 + strength, len(enhancers))
    for index in random.permutation(len(enhancers)):
        picture = enhancers[index](picture).enhance(factors[index])
    return np.asarray(picture).reshape(image.shape)


PRESETS = {
    "crop_flip": Augmentation(crop="shift"),
    "random_resized_crop": Augmentation(),
    "rand_augment": Augmentation(rand_augment="m9-mstd0.5-inc1", erasing=0.25),
    "keras_cv": Augmentation(rand_augment="m9-mstd0.5-inc1", erasing=0.25, by="keras_cv"),
}
"""Augmentations by name; "rand_augment" is that of DeiT and its successors."""
