"""Losses that Keras lacks."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vitx")
class SmoothedCrossentropy(keras.losses.Loss):
    r"""Cross entropy of integer or soft labels with label smoothing.

    With $K$ classes and smoothing $s$, the target is $(1 - s)\,y + s / K$, where an integer
    label is one-hot encoded as $y$.

    Labels: integers `(...)` or `(..., 1)`, or distributions over the classes, `(..., K)`.
    Predictions: `(..., K)`, `(batch, K)` or one per patch, `(batch, patches, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
    """

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
class PerHead(keras.losses.Loss):
    r"""A loss per classifier, for heads with several (`DistilledHead`, `DenseHead`).

    Pass it to `model.compile` if the losses or weights of the classifiers differ. DeiT's
    hard distillation (Section 3) smooths only the labels of the class token's head. Each
    image has two labels, of which the second is the teacher's most probable class:

    ```python
    model.compile(
        "adamw",
        PerHead({"head": SmoothedCrossentropy(0.1), "head_dist": SmoothedCrossentropy()}),
    )
    model.fit(images, {"head": labels, "head_dist": teacher.predict(images).argmax(-1)})
    ```

    DeiT's soft distillation takes the teacher's probabilities as labels:
    `PerHead({"head": SmoothedCrossentropy(0.1), "head_dist": SoftDistillation(3.0)},
    weights={"head": 0.9, "head_dist": 0.1})`.

    A model with one classifier may be given several labels per image, too: its prediction is
    compared with each of them, $\sum_i w_i\, \mathrm{loss}_i(y_i, \hat y)$. Without a
    distillation token, hard distillation (CaiT's $\Upsilon$ models, ConViT's Table 4) is
    `PerHead({"head": SmoothedCrossentropy(0.1), "teacher": SmoothedCrossentropy()},
    weights={"head": 0.5, "teacher": 0.5})` with labels `{"head": ..., "teacher": ...}`.
    `Distillation` makes the labels and the loss of each of these.

    In evaluation the loss is that of `"head"`.

    Args:
        losses: Loss per head or label, by name, including `"head"`. A head without an entry
            uses the loss of `"head"`.
        weights: Weights in the sum of losses, by name, in place of the model's own. For a
            model with one classifier they are 1 by default.
        name: Name of the loss.

    Raises:
        ValueError: if `losses` has no `"head"`, or a loss is not a `keras.losses.Loss`.
    """

    def __init__(
        self,
        losses: Mapping[str, keras.losses.Loss],
        weights: Mapping[str, float] | None = None,
        name: str = "per_head",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if "head" not in losses:
            raise ValueError(f"`losses` must have a loss for 'head'. Received: {sorted(losses)}.")
        for head, loss in losses.items():
            if not isinstance(loss, keras.losses.Loss):
                raise ValueError(
                    "`losses` must have a `keras.losses.Loss` for each head. "
                    f"Received: {loss!r} for {head!r}."
                )
        self.losses = dict(losses)
        self.weights = dict(weights or {})

    def call(self, y_true, y_pred):
        if not isinstance(y_true, dict):
            return self.losses["head"].call(y_true, y_pred)
        return sum(
            self.weights.get(name, 1.0) * self.losses[name].call(labels, y_pred)
            for name, labels in y_true.items()
        )

    def get_config(self):
        losses = {
            name: keras.saving.serialize_keras_object(loss) for name, loss in self.losses.items()
        }
        return {**super().get_config(), "losses": losses, "weights": self.weights}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PerHead":
        """Make the loss that `config` describes."""
        losses = {
            name: keras.saving.deserialize_keras_object(loss)
            for name, loss in config["losses"].items()
        }
        return cls(**{**config, "losses": losses})


def _log(probabilities):
    return ops.log(ops.maximum(probabilities, 1e-37))
