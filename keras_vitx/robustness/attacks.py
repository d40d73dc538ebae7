"""Adversarial attacks (Context Broadcasting, Table 8)."""

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import input_gradient
from keras_vitx.classifier import outputs_of
from keras_vitx.robustness.corruptions import Perturbation, check_strength

LEAST = 1e-37
"""Smallest probability whose logarithm is taken."""


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
        self.epsilon = check_strength("epsilon", epsilon, 1)
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"`steps` must be a whole number above 0. Received: {steps!r}.")
        self.steps = steps
        self.step = 2.5 * self.epsilon / steps if step is None else check_strength("step", step)
        self.random_start, self.seed = random_start, seed
        self.gradient = input_gradient(_loss_of(model), model.variables)

    def change(self, pixels, labels, index):
        if labels.ndim != 1:
            raise ValueError(
                "An attack needs one class per image, labels (batch,). Received labels of shape "
                f"{labels.shape}."
            )
        changed = pixels
        if self.random_start:
            random = np.random.default_rng([self.seed, index])
            changed = pixels + random.uniform(-self.epsilon, self.epsilon, pixels.shape)
            changed = np.clip(changed, 0, 1).astype("float32")
        low, high = pixels - self.epsilon, pixels + self.epsilon
        for _ in range(self.steps):
            inputs = ((changed - self.mean) / self.std).astype("float32")
            # The derivatives by a pixel and by the model's input have the same sign.
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
    """Return a function of images and labels, the sum of the cross entropies."""
    outputs = outputs_of(model)
    if outputs.kind == "sigmoid":
        raise ValueError(
            f"An attack needs a classifier of one class per image; the outputs of {model.name!r} "
            "are independent of each other (sigmoid)."
        )

    def loss(images, labels):
        found = ops.cast(model(images, training=False), "float32")
        # Keras's loss clips probabilities at 1e-7, where gradients would end.
        is_logits = outputs.from_logits
        logs = ops.log_softmax(found) if is_logits else ops.log(ops.maximum(found, LEAST))
        right = ops.take_along_axis(logs, ops.cast(labels, "int32")[:, None], axis=-1)
        return -ops.sum(right)

    return loss
