"""Accuracy on perturbed images: occlusion, noise, blur and adversarial attacks.

Context Broadcasting, Tables 8 and 12. Each perturbation is created from a model and a strength, and
passed to `evaluate`: `keras_vitx.evaluate(model, source, perturb=FGSM(model, 1 / 255))`.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vitx.backend import input_gradient
from keras_vitx.checks import Probability, check, check_argument
from keras_vitx.outputs import outputs_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.training.evaluate import evaluate

__all__ = ["FGSM", "PGD", "GaussianBlur", "GaussianNoise", "Occlusion", "ShotNoise", "curve"]


class Perturbation:
    """A change of the pixels of images, which depend on the model's `preprocessing`.

    `change` of a subclass returns the changed pixels, which are then clipped to 0..1.
    """

    def __init__(self, model: keras.Model | ModelInput):
        preprocessing = ModelInput.of(model).preprocessing
        self.mean = np.array(preprocessing.mean, "float32")
        self.std = np.array(preprocessing.std, "float32")

    def __call__(self, images: ArrayLike, labels: ArrayLike, index: int = 0) -> np.ndarray:
        """Return perturbed inputs (batch, height, width, channels); `index` seeds the noise."""
        pixels = np.asarray(images, "float32") * self.std + self.mean
        changed = np.clip(self.change(pixels, np.asarray(labels), index), 0, 1)
        return ((changed - self.mean) / self.std).astype("float32")


class Occlusion(Perturbation):
    """The center of the image set to zero (Context Broadcasting, Section 3.4, Table 8, "Occ").

    The paper does not define zero; here it is that of the normalized image, the mean color.

    Args:
        model: A model with `preprocessing`.
        fraction: Fraction of the area, 0 to 1, of a centered rectangle with the image's aspect
            ratio, which the paper does not specify.
    """

    def __init__(self, model: keras.Model | ModelInput, fraction: float):
        super().__init__(model)
        self.fraction = check_argument("fraction", fraction, Probability)

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

    def __init__(self, model: keras.Model | ModelInput, sigma: float, seed: int = 0):
        super().__init__(model)
        self.sigma, self.seed = sigma, seed

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

    def __init__(self, model: keras.Model | ModelInput, strength: float, seed: int = 0):
        super().__init__(model)
        self.strength, self.seed = strength, seed

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

    def __init__(self, model: keras.Model | ModelInput, sigma: float):
        super().__init__(model)
        self.sigma = sigma

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
        ValueError: if the model has independent outputs.
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
        self.epsilon, self.steps = epsilon, steps
        self.step = 2.5 * epsilon / steps if step is None else step
        self.random_start, self.seed = random_start, seed
        self.gradient = input_gradient(_loss_of(model), model.variables)

    def change(self, pixels, labels, index):
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
    """

    def __init__(self, model: keras.Model, epsilon: float):
        super().__init__(model, epsilon, steps=1, step=epsilon, random_start=False)


def _loss_of(model):
    """Return the sum of the cross entropies as a function of images and labels."""
    outputs = outputs_of(model)
    rule = "`model` must predict one class per image to be attacked."
    check(outputs.kind != "sigmoid", rule, model.name)

    def loss(images, labels):
        x = ops.cast(model(images, training=False), "float32")
        # Keras's loss clips probabilities at 1e-7, below which gradients are 0.
        logs = ops.log_softmax(x) if outputs.from_logits else ops.log(ops.maximum(x, 1e-37))
        return -ops.sum(ops.take_along_axis(logs, ops.cast(labels, "int32")[:, None], axis=-1))

    return loss


PERTURBATIONS: dict[str, Callable[..., Any]] = {
    "occlude": Occlusion,
    "fgsm": FGSM,
    "pgd": PGD,
    "noise": GaussianNoise,
    "shot_noise": ShotNoise,
    "blur": GaussianBlur,
}
"""The perturbations by name, as functions of a model and a strength."""

RANDOM = ("pgd", "noise", "shot_noise")  # Perturbations with a seed.
# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def curve(
    model: keras.Model,
    source: Any,
    kind: str,
    strengths: Sequence[float],
    runs: int = 1,
    evaluate: Callable[..., dict[str, Any]] = evaluate,
    measure: str = "accuracy",
    **options: Any,
) -> list[dict[str, Any]]:
    r"""Evaluate a model on images perturbed with each strength.

    Args:
        model: A classifier with `preprocessing`.
        source: Labeled images, as in `keras_vitx.evaluate`.
        kind: One of `PERTURBATIONS`.
        strengths: The strengths, in the units of the perturbation.
        runs: Number of evaluations of random perturbations with different seeds, at most 10
            (Context Broadcasting, Table 12, has five).
        evaluate: `keras_vitx.evaluate`, or a function with its `perturb`.
        measure: Key of its result, such as `"mean_iou"`.
        **options: Further arguments of `evaluate`, such as `batch_size`.

    Returns:
        One dictionary per strength: `"kind"`, `"strength"`, the measure by its name (the mean of
        the runs), `"interval"` (half its 95 % confidence interval, $t\,s / \sqrt n$; None for one
        run) and `"images"`.
    """
    seeds = [{"seed": seed} for seed in range(runs)] if kind in RANDOM else [{}]
    # Before the first evaluation, so that an invalid strength costs no time.
    perturbations = [[PERTURBATIONS[kind](model, x, **seed) for seed in seeds] for x in strengths]
    quantile = None if runs == 1 else T[runs - 2]
    rows = []
    for strength, perturbs in zip(strengths, perturbations, strict=True):
        results = [evaluate(model, source, perturb=perturb, **options) for perturb in perturbs]
        values = [result[measure] for result in results]
        row = {"kind": kind, "strength": strength, measure: statistics.fmean(values)}
        row["interval"] = None
        if len(values) > 1:
            row["interval"] = quantile * statistics.stdev(values) / len(values) ** 0.5
        rows.append({**row, "images": results[0]["images"]})
    return rows
