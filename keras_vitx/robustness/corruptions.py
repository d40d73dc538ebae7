"""Occlusion, noise and blur (Context Broadcasting, Tables 8 and 12)."""

import math
from numbers import Real
from typing import Any

import numpy as np
from keras import ops

from keras_vitx.preprocessing import ModelInput


class Perturbation:
    """A change of the pixels of images; the model's `preprocessing` tells what these are."""

    def __init__(self, model: Any):
        preprocessing = ModelInput.of(model).preprocessing
        self.mean = np.array(preprocessing.mean, "float32")
        self.std = np.array(preprocessing.std, "float32")

    def __call__(self, images: Any, labels: Any, index: int = 0) -> np.ndarray:
        """Return perturbed images (batch, height, width, channels), as the model takes them.

        Random numbers follow from `index`, the index of the batch.
        """
        pixels = np.asarray(images, "float32") * self.std + self.mean
        changed = np.clip(self.change(pixels, np.asarray(labels), index), 0, 1)
        return ((changed - self.mean) / self.std).astype("float32")

    def change(self, pixels: np.ndarray, labels: np.ndarray, index: int) -> np.ndarray:
        """Return the changed pixels, which are clipped to 0..1 afterwards."""
        raise NotImplementedError


def check_strength(name: str, value: Any, maximum: float = math.inf) -> float:
    """Return a strength as a float; a ValueError if it is not finite, in 0..maximum."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= maximum or math.isinf(value):
        limit = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ValueError(f"`{name}` must be a number of at least 0{limit}. Received: {value!r}.")
    return float(value)


class Occlusion(Perturbation):
    """The center of the image set to zero (Context Broadcasting, Section 3.4, Table 8, "Occ").

    The paper does not say what zero is; here it is that of the normalized image, its mean color.

    Args:
        model: A model with `preprocessing`.
        share: Share of the area, 0 to 1, of a centered rectangle with the image's aspect ratio. The
            paper gives none.
    """

    def __init__(self, model: Any, share: float):
        super().__init__(model)
        self.share = check_strength("share", share, 1)

    def change(self, pixels, labels, index):
        changed = pixels.copy()
        height, width = pixels.shape[1:3]
        rows, columns = (round(side * self.share**0.5) for side in (height, width))
        top, left = (height - rows) // 2, (width - columns) // 2
        changed[:, top : top + rows, left : left + columns] = self.mean
        return changed


class GaussianNoise(Perturbation):
    """Normally distributed noise (Table 12, sigma 5 and 10).

    Args:
        model: A model with `preprocessing`.
        sigma: Standard deviation, for pixel values in 0..255.
        seed: Seed of the noise.
    """

    def __init__(self, model: Any, sigma: float, seed: int = 0):
        super().__init__(model)
        self.sigma, self.seed = check_strength("sigma", sigma), seed

    def change(self, pixels, labels, index):
        random = np.random.default_rng([self.seed, index])
        return pixels + self.sigma / 255 * random.standard_normal(pixels.shape, "float32")


class ShotNoise(Perturbation):
    """Poisson noise (Table 12; Hendrycks and Dietterich, 2019).

    A pixel value $x$ in 0..1 becomes $P(x / s) s$, with $P$ a Poisson variable of that mean:
    its variance is $x s$.

    Args:
        model: A model with `preprocessing`.
        strength: $s$, the inverse of the photons of a white pixel. The five severities of
            Hendrycks and Dietterich are 1/60, 1/25, 1/12, 1/5 and 1/3; 0 changes nothing.
        seed: Seed of the noise.
    """

    def __init__(self, model: Any, strength: float, seed: int = 0):
        super().__init__(model)
        self.strength, self.seed = check_strength("strength", strength), seed

    def change(self, pixels, labels, index):
        if not self.strength:
            return pixels
        random = np.random.default_rng([self.seed, index])
        return random.poisson(pixels.clip(0, 1) / self.strength) * self.strength


class GaussianBlur(Perturbation):
    """Gaussian blur (Table 12, sigma 1 and 2). Beyond its border, the image is mirrored.

    Args:
        model: A model with `preprocessing`.
        sigma: Standard deviation of the kernel in pixels, which is cut off at four of them.
    """

    def __init__(self, model: Any, sigma: float):
        super().__init__(model)
        self.sigma = check_strength("sigma", sigma)

    def change(self, pixels, labels, index):
        reach = min(int(4 * self.sigma + 0.5), *(side - 1 for side in pixels.shape[1:3]))
        if not reach:
            return pixels
        border = ((0, 0), (reach, reach), (reach, reach), (0, 0))
        mirrored = ops.convert_to_tensor(np.pad(pixels, border, mode="reflect"))
        size = (2 * reach + 1, 2 * reach + 1)
        blurred = ops.image.gaussian_blur(
            mirrored, size, (self.sigma, self.sigma), data_format="channels_last"
        )
        return ops.convert_to_numpy(blurred)[:, reach:-reach, reach:-reach]
