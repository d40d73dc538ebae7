"""Loss, metric and optimizer of the recipe of Context Broadcasting's Table 7."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_vitx.segmentation.evaluate import check_segmenter
from keras_vitx.segmentation.masks import IGNORED
from keras_vitx.training import AdamW


@keras.saving.register_keras_serializable(package="keras_vitx")
@dataclasses.dataclass(eq=False)
class WarmupPolynomial(keras.optimizers.schedules.LearningRateSchedule):
    r"""Polynomial decay of the learning rate to zero, times a linear warm-up.

    At step $s$ of $S$, with $W$ steps of warm-up, and 0 from step $S$ on,

    $$\eta(s) = \eta\,(1 - s / S)^p\, \min(1, (s + 1) / W).$$

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


def compile(
    model: keras.Model,
    steps: int = 40_000,
    learning_rate: float = 6e-5,
    warmup_steps: int = 1500,
    weight_decay: float = 0.01,
    power: float = 1.0,
) -> None:
    """Compile a model for `keras_vitx.fit`, or plain `fit`, with masks.

    AdamW with weight decay of kernels, polynomial decay of the learning rate, the mean cross
    entropy of the pixels that are not ignored, and their mean intersection over union.

    Args:
        model: A model from images to logits `(batch, height, width, classes)`.
        steps: Steps until the learning rate is 0.
        learning_rate: Its peak, XCiT's, whose settings the paper follows.
        warmup_steps: Steps of linear warm-up, at most a tenth of all.
        weight_decay: Decoupled weight decay.
        power: Power of the decay.

    Raises:
        ValueError: if `steps` is not positive, or the model returns no logits per pixel.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"`steps` must be a whole number of at least 1. Received: {steps!r}.")
    check_segmenter(model)
    rate = WarmupPolynomial(learning_rate, steps, min(warmup_steps, steps // 10), power)
    iou = keras.metrics.MeanIoU(
        model.output_shape[-1], ignore_class=IGNORED, sparse_y_pred=False, name="mean_iou"
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
    model.compile(AdamW(rate, weight_decay), loss, metrics=[iou])
