"""Occlusion, noise, blur and adversarial attacks (Context Broadcasting, Tables 8 and 12)."""

import math
from numbers import Real
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import input_gradient
from keras_vitx.outputs import outputs_of
from keras_vitx.preprocessing import ModelInput


class Perturbation:
    """A change of the pixels of images, which depend on the model's `preprocessing`."""

    def __init__(self, model: Any):
        preprocessing = ModelInput.of(model).preprocessing
        self.mean = np.array(preprocessing.mean, "float32")
        self.std = np.array(preprocessing.std, "float32")

    def __call__(self, images: Any, labels: Any, index: int = 0) -> np.ndarray:
        """Return perturbed inputs (batch, height, width, channels); `index` seeds the noise."""
        pixels = np.asarray(images, "float32") * self.std + self.mean
        changed = np.clip(self.change(pixels, np.asarray(labels), index), 0, 1)
        return ((changed - self.mean) / self.std).astype("float32")

    def change(self, pixels: np.ndarray, labels: np.ndarray, index: int) -> np.ndarray:
        """Return the changed pixels, which are then clipped to 0..1."""
        raise NotImplementedError


def _strength(name, value, maximum=math.inf):
    """Return a strength as a float; a ValueError unless it is finite and in 0..maximum."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= maximum or math.isinf(value):
        limit = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ValueError(f"`{name}` must be a number of at least 0{limit}. Received: {value!r}.")
    return float(value)


class Occlusion(Perturbation):
    """The center of the image set to zero (Context Broadcasting, Section 3.4, Table 8, "Occ").

    The paper does not define zero; here it is that of the normalized image, the mean color.

    Args:
        model: A model with `preprocessing`.
        fraction: Fraction of the area, 0 to 1, of a centered rectangle with the image's aspect
            ratio, which the paper does not specify.
    """

    def __init__(self, model: Any, fraction: float):
        super().__init__(model)
        self.fraction = _strength("fraction", fraction, 1)

    def change(self, pixels, labels, index):
        changed = pixels.copy()
        height, width = pixels.shape[1:3]
        rows, columns = (round(side * self.fraction**0.5) for side in (height, width))
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
        self.sigma, self.seed = _strength("sigma", sigma), seed

    def change(self, pixels, labels, index):
        random = np.random.default_rng([self.seed, index])
        return pixels + self.sigma / 255 * random.standard_normal(pixels.shape, "float32")


class ShotNoise(Perturbation):
    """Poisson noise (Table 12; Hendrycks and Dietterich, 2019).

    A pixel value $x$ in 0..1 becomes $P(x / s) s$, with $P$ a Poisson variable of that mean; its
    variance is $x s$.

    Args:
        model: A model with `preprocessing`.
        strength: $s$, the inverse of the photons of a white pixel. The five severities of
            Hendrycks and Dietterich are 1/60, 1/25, 1/12, 1/5 and 1/3; 0 changes nothing.
        seed: Seed of the noise.
    """

    def __init__(self, model: Any, strength: float, seed: int = 0):
        super().__init__(model)
        self.strength, self.seed = _strength("strength", strength), seed

    def change(self, pixels, labels, index):
        if not self.strength:
            return pixels
        random = np.random.default_rng([self.seed, index])
        return random.poisson(pixels.clip(0, 1) / self.strength) * self.strength


class GaussianBlur(Perturbation):
    """Gaussian blur (Table 12, sigma 1 and 2). The image is mirrored at its border.

    Args:
        model: A model with `preprocessing`.
        sigma: Standard deviation of the kernel in pixels; it is truncated at four of them.
    """

    def __init__(self, model: Any, sigma: float):
        super().__init__(model)
        self.sigma = _strength("sigma", sigma)

    def change(self, pixels, labels, index):
        radius = min(int(4 * self.sigma + 0.5), *(side - 1 for side in pixels.shape[1:3]))
        if not radius:
            return pixels
        border = ((0, 0), (radius, radius), (radius, radius), (0, 0))
        padded = ops.convert_to_tensor(np.pad(pixels, border, mode="reflect"))
        size, sigma = (2 * radius + 1,) * 2, (self.sigma,) * 2
        blurred = ops.image.gaussian_blur(padded, size, sigma, data_format="channels_last")
        return ops.convert_to_numpy(blurred)[:, radius:-radius, radius:-radius]


class PGD(Perturbation):
    r"""Projected gradient descent (Madry et al., 2018).

    From a random start within $\epsilon$ of the image, each step is
    $$x \leftarrow \Pi(x + \alpha\,\mathrm{sign}(\nabla_x L(x, y))),$$
    with $L$ the cross entropy and $\Pi$ the projection to pixels within $\epsilon$ of the
    image's, and to 0..1. The gradient is that of inference.

    Args:
        model: A classifier of one class per image, with `preprocessing` and its final weights.
        epsilon: $\epsilon$, for pixel values in 0..1.
        steps: Number of steps.
        step: $\alpha$; None is $2.5\,\epsilon$ / steps.
        random_start: Whether to start at a random point instead of the image.
        seed: Seed of the random start.

    Raises:
        ValueError: if an argument is out of range, or the model is not such a classifier.
    """

    def __init__(
        self,
        model: keras.Model,
        epsilon: float,
        steps: int = 10,
        step: float | None = None,
        random_start: bool = True,
        seed: int = 0,
    ):
        super().__init__(model)
        self.epsilon = _strength("epsilon", epsilon, 1)
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"`steps` must be an integer, at least 1. Received: {steps!r}.")
        self.steps = steps
        self.step = 2.5 * self.epsilon / steps if step is None else _strength("step", step)
        self.random_start, self.seed = random_start, seed
        self.gradient = input_gradient(_loss_of(model), model.variables)

    def change(self, pixels, labels, index):
        if labels.ndim != 1:
            raise ValueError(
                f"Labels must be one class per image, (batch,). Received: {labels.shape}."
            )
        changed = pixels
        if self.random_start:
            random = np.random.default_rng([self.seed, index])
            changed = pixels + random.uniform(-self.epsilon, self.epsilon, pixels.shape)
            changed = np.clip(changed, 0, 1).astype("float32")
        low, high = pixels - self.epsilon, pixels + self.epsilon
        for _ in range(self.steps):
            inputs = ((changed - self.mean) / self.std).astype("float32")
            # The gradients of a pixel and of the model's input have the same sign.
            changed = changed + self.step * np.sign(self.gradient(inputs, labels))
            changed = np.clip(np.clip(changed, low, high), 0, 1)
        return changed


class FGSM(PGD):
    r"""The fast gradient sign method: $x + \epsilon\,\mathrm{sign}(\nabla_x L(x, y))$.

    Goodfellow et al., 2015; Context Broadcasting, Table 8, which does not give $\epsilon$.

    Args:
        model: As in `PGD`.
        epsilon: $\epsilon$, for pixel values in 0..1, such as 1/255.

    Raises:
        ValueError: as in `PGD`.
    """

    def __init__(self, model: keras.Model, epsilon: float):
        super().__init__(model, epsilon, steps=1, step=epsilon, random_start=False)


def _loss_of(model):
    """Return the sum of the cross entropies as a function of images and labels."""
    outputs = outputs_of(model)
    if outputs.kind == "sigmoid":
        raise ValueError(
            "`model` must be a classifier of one class per image for an attack. Received: "
            f"{model.name!r}, with independent outputs (sigmoid)."
        )

    def loss(images, labels):
        x = ops.cast(model(images, training=False), "float32")
        # Keras's loss clips probabilities at 1e-7, below which gradients are 0.
        logs = ops.log_softmax(x) if outputs.from_logits else ops.log(ops.maximum(x, 1e-37))
        return -ops.sum(ops.take_along_axis(logs, ops.cast(labels, "int32")[:, None], axis=-1))

    return loss
