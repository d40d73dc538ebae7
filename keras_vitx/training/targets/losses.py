"""Losses that Keras lacks."""

from typing import Any

import keras
from keras import ops

from keras_vitx.keras_internals import logits_of
from keras_vitx.losses import PerHead as PerHead


@keras.saving.register_keras_serializable(package="keras_vitx")
class SmoothedCrossentropy(keras.losses.Loss):
    r"""Cross entropy of integer or soft labels with label smoothing.

    With $K$ classes and smoothing $s$, the target is $(1 - s)\,y + s / K$, where an integer
    label is one-hot encoded as $y$. Of probabilities, the loss takes the logarithms, which are
    logits up to a constant: Keras clips probabilities at 1e-7 (but under TensorFlow), below
    which their gradient is 0.

    Labels: integers `(...)` or `(..., 1)`, or distributions over the classes, `(..., K)`.
    Predictions: `(..., K)`, `(batch, K)` or one per patch, `(batch, patches, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
    """

    activation = "softmax"

    def __init__(
        self,
        label_smoothing: float = 0.0,
        from_logits: bool = False,
        name: str = "smoothed_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        if len(y_true.shape) != len(y_pred.shape) or y_true.shape[-1] != classes:
            labels = ops.reshape(y_true, ops.shape(y_pred)[:-1])
            y_true = ops.one_hot(ops.cast(labels, "int32"), classes, dtype=y_pred.dtype)
        return keras.losses.categorical_crossentropy(
            y_true,
            y_pred if self.from_logits else _log(y_pred),
            from_logits=True,
            label_smoothing=self.label_smoothing,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "from_logits": self.from_logits,
        }


@keras.saving.register_keras_serializable(package="keras_vitx")
class SoftDistillation(keras.losses.Loss):
    r"""Kullback-Leibler divergence between a teacher and a student, at a temperature.

    $\tau^2\, \mathrm{KL}(p_\tau \,\|\, q_\tau)$ with $p_\tau \propto p^{1/\tau}$ the
    teacher's and $q_\tau$ the student's distribution at temperature $\tau$ (Hinton et al.,
    2015; DeiT, Section 3, with $\tau = 3$). DeiT's released code also divides by the number
    of classes $K$.

    Labels: the teacher's probabilities, `(..., K)`. Predictions: the student's logits or
    probabilities, `(..., K)`.

    Args:
        temperature: $\tau$, above 0.
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.

    Raises:
        ValueError: if `temperature` is not above 0.
    """

    activation = "softmax"

    def __init__(
        self,
        temperature: float = 3.0,
        from_logits: bool = False,
        name: str = "soft_distillation",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: {temperature!r}.")
        self.temperature = temperature
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        # The logarithms of probabilities are logits, up to a constant.
        student = y_pred if self.from_logits else _log(y_pred)
        teacher = ops.log_softmax(_log(y_true) / self.temperature)
        student = ops.log_softmax(student / self.temperature)
        return self.temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "temperature": self.temperature,
            "from_logits": self.from_logits,
        }


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


def _log(probabilities):
    # Just above the least normal number of float32, to which half precision is cast.
    return ops.log(ops.maximum(ops.cast(probabilities, "float32"), 1e-37))
