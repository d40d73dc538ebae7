"""The learning rate over time, as segmentation is trained."""

import dataclasses
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vitx")
@dataclasses.dataclass(eq=False)
class WarmupPolynomial(keras.optimizers.schedules.LearningRateSchedule):
    r"""Polynomial decay to zero, times a linear warm-up.

    At step $s$ of $S$, with $W$ steps of warm-up,

    $$\eta(s) = \eta\,(1 - s / S)^p\, \min(1, (s + 1) / W),$$

    and 0 from step $S$ on. (Keras's `PolynomialDecay` has no warm-up.)

    Args:
        learning_rate: $\eta$.
        steps: $S$.
        warmup_steps: $W$; 0 for no warm-up.
        power: $p$; 1 is a straight line.
    """

    learning_rate: float
    steps: int
    warmup_steps: int = 0
    power: float = 1.0

    def __call__(self, step):
        now = ops.cast(step, "float32")
        left = ops.maximum(1 - now / self.steps, 0.0)
        rate = self.learning_rate * left**self.power
        if not self.warmup_steps:
            return rate
        return rate * ops.minimum((now + 1) / self.warmup_steps, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal schedule."""
        return dataclasses.asdict(self)
