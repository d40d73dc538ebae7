"""The optimizer of pre-training and fine-tuning: AdamW with warmup and linear decay."""

import keras
from keras import ops

from keras_vitx.layers.base import register


def adamw(
    learning_rate: float, steps: int, warmup: float = 0.1, weight_decay: float = 0.01
) -> keras.optimizers.Optimizer:
    """Return AdamW with warmup and linear decay to 0, without decay of biases and norms."""
    made = keras.optimizers.AdamW(
        WarmupLinear(learning_rate, steps, warmup), weight_decay=weight_decay, clipnorm=1.0
    )
    made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return made


@register
class WarmupLinear(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to `peak`, then falls linearly to 0.

    Args:
        peak: Largest learning rate.
        steps: Number of steps until 0.
        warmup: Share of the steps in which it rises.
    """

    def __init__(self, peak: float, steps: int, warmup: float = 0.1):
        self.peak, self.steps, self.warmup = peak, steps, warmup

    def __call__(self, step):
        done = ops.cast(step, "float32") / max(1, self.steps)
        rise = (done + 1 / max(1, self.steps)) / max(self.warmup, 1e-9)
        fall = (1 - done) / (1 - min(self.warmup, 1 - 1e-9))
        return self.peak * ops.clip(ops.minimum(rise, fall), 0.0, 1.0)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps, "warmup": self.warmup}
