"""The learning rate over time."""

import dataclasses
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vitx")
@dataclasses.dataclass(eq=False)
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    r"""Linear warm-up, cosine decay, and a constant rate from then on.

    At step $s$, with $S$ steps of which $W$ are warm-up,

    $$\eta(s) = \begin{cases}
    \eta_0 + (\eta - \eta_0)\, s / W & s < W \\
    \eta_1 + (\eta - \eta_1)\,(1 + \cos(\pi s / S)) / 2 & W \le s < S \\
    \eta_1 & S \le s \end{cases}$$

    as in timm's trainer and DeiT's code, with which the papers were trained: the cosine
    begins at step 0, and the warm-up replaces its first part. (Keras's `CosineDecay` begins
    at $W$.) Their codes change the rate once per epoch, so that a whole epoch of the warm-up
    runs at $\eta_0$. Here it changes with every update, which gives the same rates at the
    start of each epoch, and keeps short runs smooth.

    Args:
        learning_rate: The peak $\eta$.
        steps: $S$.
        warmup_steps: $W$; may be fractional.
        warmup_learning_rate: $\eta_0$.
        final_learning_rate: $\eta_1$; equal to $\eta$ for a constant rate.
        accumulate_steps: Steps per update of the weights, as Keras counts steps where the
            optimizer accumulates gradients. The rate changes only with the updates.
    """

    learning_rate: float
    steps: float
    warmup_steps: float = 0.0
    warmup_learning_rate: float = 0.0
    final_learning_rate: float = 0.0
    accumulate_steps: int = 1

    def __call__(self, step):
        # Integers stay exact in float32 to 2^24 updates only, so they are divided as integers.
        update = ops.cast(ops.floor_divide(step, self.accumulate_steps), "float32")
        now = update * self.accumulate_steps
        done = ops.minimum(now / self.steps, 1.0)
        start, peak, end = self.warmup_learning_rate, self.learning_rate, self.final_learning_rate
        cosine = end + (peak - end) * (1 + ops.cos(done * 3.141592653589793)) / 2
        if not self.warmup_steps:
            return cosine
        warmup = start + (peak - start) * now / self.warmup_steps
        return ops.where(now < self.warmup_steps, warmup, cosine)

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
