"""Losses that Keras lacks."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vitx")
class SmoothedCrossentropy(keras.losses.Loss):
    r"""Cross entropy with smoothed whole-number labels.

    With $K$ classes and smoothing $s$ the target is $1 - s + s / K$ at the label
    and $s / K$ elsewhere.

    Labels: `(batch,)` or `(batch, 1)` whole numbers. Predictions: `(batch, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits and not probabilities.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        from_logits: bool = False,
        name: str = "smoothed_crossentropy",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        return keras.losses.categorical_crossentropy(
            ops.one_hot(labels, y_pred.shape[-1], dtype=y_pred.dtype),
            y_pred,
            from_logits=self.from_logits,
            label_smoothing=self.label_smoothing,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "from_logits": self.from_logits,
        }
