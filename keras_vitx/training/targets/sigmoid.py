"""The loss of a sigmoid head."""

from typing import Any

import keras
from keras import ops

from keras_vitx.keras_internals import logits_of


@keras.saving.register_keras_serializable(package="keras_vitx")
class SigmoidCrossentropy(keras.losses.Loss):
    r"""Binary cross entropy with label smoothing, averaged over the classes.

    With smoothing $s$, the target is $(1 - s)\,y + s / 2$, where $y$ is 1 for the classes
    of the image and 0 for all others. Of probabilities $p$, the loss takes the logits
    $\log p - \log(1 - p)$, and so learns from any that float32 tells from 0 and 1: above a logit
    of 16.6, $p$ is 1, and without a gradient. A `Chain` trains on the logits themselves, as do
    other models but under JAX.

    Labels: `(batch, K)`, in 0..1; or integers `(batch,)` or `(batch, 1)`, the class of each
    image (for $K = 1$: whether the image belongs to the class). Predictions: `(batch, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
    """

    activation = "sigmoid"

    def __init__(
        self,
        label_smoothing: float = 0.0,
        from_logits: bool = False,
        name: str = "sigmoid_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        if len(y_true.shape) != len(y_pred.shape) or y_true.shape[-1] != classes:
            y_true = ops.reshape(y_true, ops.shape(y_pred)[:-1])
            if classes == 1:
                y_true = ops.expand_dims(y_true, -1)
            else:
                y_true = ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=y_pred.dtype)
        logits = y_pred if self.from_logits else logits_of(y_pred)
        if logits is None:
            logits = ops.cast(y_pred, "float32")
            # 1 - 2^-24 is the largest number below 1.
            logits = ops.log(ops.maximum(logits, 1e-37)) - ops.log1p(
                -ops.minimum(logits, 1 - 2**-24)
            )
        return keras.losses.binary_crossentropy(
            y_true, logits, from_logits=True, label_smoothing=self.label_smoothing
        )

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "from_logits": self.from_logits,
        }
