"""RandAugment, with operations whose strength increases with the magnitude.

Cubuk et al., 2020, with the operations and random magnitudes of timm's "rand-m9-mstd0.5-inc1".
`keras.layers.RandAugment` of Keras 3.15 is another augmentation: it draws the operations once per
batch, always applies them, and lacks Invert and SolarizeAdd.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from keras_vitx.checks import check
from keras_vitx.data.augmentation.windows import draw_filter
from keras_vitx.pixels import Pixels

Fill = int | tuple[int, ...]
BICUBIC = Image.Resampling.BICUBIC
MAXIMUM = 10  # The magnitude of the strongest operations.
NAME = re.compile(r"(m|mstd|n|p|inc)(\d+\.?\d*|\.\d+)")


def _pointwise(function: Callable[[int, float], int]) -> Callable:
    """Return an operation that maps each level independently."""
    return lambda picture, x, fill: picture.point(
        [function(level, x) for level in range(256)] * len(picture.getbands())
    )


def _enhance(enhancer: Callable) -> Callable:
    return lambda picture, x, fill: enhancer(picture).enhance(max(0.1, 1 + 0.9 * x))


def _affine(coefficients: Callable) -> Callable:
    """Return an affine transform from a function of the picture and the strength."""
    return lambda picture, x, fill, resample=BICUBIC: picture.transform(
        picture.size, Image.Transform.AFFINE, coefficients(picture, x), resample, fillcolor=fill
    )


# Functions of the picture, the strength x and the color of pixels beyond the image; those of
# `GEOMETRIC` have the filter as a fourth argument.
OPERATIONS: dict[str, Callable[..., Image.Image]] = {
    "AutoContrast": lambda picture, x, fill: ImageOps.autocontrast(picture),
    "Equalize": lambda picture, x, fill: ImageOps.equalize(picture),
    "Invert": lambda picture, x, fill: ImageOps.invert(picture),
    # `ImageOps.posterize` of Pillow 13 no longer takes 0 bits, a black image.
    "Posterize": _pointwise(lambda level, x: level & -(2 ** (4 + int(4 * x)))),
    "Solarize": lambda picture, x, fill: ImageOps.solarize(picture, 256 - int(256 * x)),
    "SolarizeAdd": _pointwise(
        lambda level, x: min(255, level + int(110 * x)) if level < 128 else level
    ),
    "Rotate": lambda picture, x, fill, resample=BICUBIC: picture.rotate(
        30 * x, resample, fillcolor=fill
    ),
    "Color": _enhance(ImageEnhance.Color),
    "Contrast": _enhance(ImageEnhance.Contrast),
    "Brightness": _enhance(ImageEnhance.Brightness),
    "Sharpness": _enhance(ImageEnhance.Sharpness),
    "ShearX": _affine(lambda picture, x: (1, 0.3 * x, 0, 0, 1, 0)),
    "ShearY": _affine(lambda picture, x: (1, 0, 0, 0.3 * x, 1, 0)),
    "TranslateX": _affine(lambda picture, x: (1, 0, 0.45 * x * picture.width, 0, 1, 0)),
    "TranslateY": _affine(lambda picture, x: (1, 0, 0, 0, 1, 0.45 * x * picture.height)),
}
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
NAMES = tuple(OPERATIONS)
# Operations with two directions: the sign of x is random.
SIGNED = NAMES[NAMES.index("Rotate") :]


@dataclass(frozen=True)
class RandAugment:
    """Random operations on an image, drawn uniformly from `OPERATIONS` with replacement.

    Each is applied with `probability`, at strength x = clip(magnitude + std · N(0, 1), 0, 10) / 10,
    in a random direction if it has two.
    """

    magnitude: float = 9.0
    std: float = 0.5
    operations: int = 2
    probability: float = 0.5

    @classmethod
    def named(cls, name: str) -> "RandAugment":
        """Parse timm's notation, such as "m9-mstd0.5-inc1"; a ValueError for another form.

        m is the magnitude, mstd its standard deviation (default 0), n the number of operations, p
        their probability. inc1, the increasing operations, is required.
        """
        fields = [NAME.fullmatch(field) for field in str(name).removeprefix("rand-").split("-")]
        values = {field[1]: float(field[2]) for field in fields if field}
        rule = '`rand_augment` must be as "m9-mstd0.5-inc1": m (magnitude), mstd, n, p and inc1.'
        known = len(values) == len(fields) and "m" in values and values.get("inc") == 1
        check(known, rule, name)
        values = {"mstd": 0.0, "n": 2, "p": 0.5, **values}
        for key, low, high in (("m", 0, MAXIMUM), ("n", 1, 100), ("p", 0, 1)):
            rule = f"`rand_augment` must have {key} in {low}..{high}."
            check(low <= values[key] <= high, rule, name)
        return cls(values["m"], values["mstd"], int(values["n"]), values["p"])

    def draw(self, random: np.random.Generator) -> list[tuple[str, float]]:
        """Return the operations to apply to an image, with their strengths x."""
        operations = []
        for index in random.integers(len(NAMES), size=self.operations):
            if random.random() >= self.probability:
                continue
            magnitude = self.magnitude + self.std * random.standard_normal()
            x = min(max(magnitude, 0.0), MAXIMUM) / MAXIMUM
            name = NAMES[index]
            operations.append((name, -x if name in SIGNED and random.random() < 0.5 else x))
        return operations

    def __call__(
        self,
        image: Pixels,
        random: np.random.Generator,
        fill: Fill,
        interpolation: str = "bicubic",
    ) -> Pixels:
        """Augment an image of one or three channels; pixels beyond it have the level `fill`."""
        operations = self.draw(random)
        if not operations:
            return image
        picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
        for name, x in operations:
            filters = [draw_filter(interpolation, random)] if name in GEOMETRIC else []
            picture = OPERATIONS[name](picture, x, fill, *filters)
        return np.asarray(picture).reshape(image.shape)
