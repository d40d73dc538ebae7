"""Losses that Keras lacks, and a loss per classifier or label, which `Chain.compile` makes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vitx.checks import check
from keras_vitx.keras_internals import logits_of


class _Crossentropy(keras.losses.Loss):
    """A cross entropy with label smoothing; a subclass has its name."""

    default_name: str

    def __init__(
        self,
        label_smoothing: float = 0.0,
        from_logits: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(name=name or self.default_name, **kwargs)
        self.label_smoothing, self.from_logits = label_smoothing, from_logits

    def get_config(self):
        arguments = {"label_smoothing": self.label_smoothing, "from_logits": self.from_logits}
        return {**super().get_config(), **arguments}


@keras.saving.register_keras_serializable(package="keras_vitx")
class SmoothedCrossentropy(_Crossentropy):
    r"""Cross entropy of integer or soft labels with label smoothing.

    With $K$ classes and smoothing $s$, the target is $(1 - s)\,y + s / K$, where an integer label
    is one-hot encoded as $y$. The logits of probabilities are taken as their logarithms, because
    Keras (except under TensorFlow) clips probabilities at 1e-7, below which the gradient is 0.

    Labels: integers `(...)` or `(..., 1)`, or distributions over the classes, `(..., K)`.
    Predictions: `(..., K)`, `(batch, K)` or one per patch, `(batch, patches, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
    """

    default_name = "smoothed_crossentropy"

    def call(self, y_true, y_pred):
        return keras.losses.categorical_crossentropy(
            _as_targets(y_true, y_pred),
            y_pred if self.from_logits else _log(y_pred),
            from_logits=True,
            label_smoothing=self.label_smoothing,
        )


@keras.saving.register_keras_serializable(package="keras_vitx")
class SigmoidCrossentropy(_Crossentropy):
    r"""Binary cross entropy with label smoothing, averaged over the classes.

    With smoothing $s$, the target is $(1 - s)\,y + s / 2$, where $y$ is 1 for the classes of the
    image and 0 for all others. From probabilities $p$, the logits are $\log p - \log(1 - p)$; above
    a logit of 16.6, $p$ is 1 in float32 and has no gradient. A `Chain` trains on the logits
    themselves, as do other models except under JAX.

    Labels: `(batch, K)`, in 0..1; or integers `(batch,)` or `(batch, 1)`, the class of each image
    (for $K = 1$: whether the image belongs to the class). Predictions: `(batch, K)`.

    Args:
        label_smoothing: $s$, in [0, 1).
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
        class_weight: Weight of the loss of each class, $(K,)$; None is 1 for all.
    """

    default_name = "sigmoid_crossentropy"

    def __init__(
        self,
        label_smoothing: float = 0.0,
        from_logits: bool = False,
        name: str | None = None,
        class_weight: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, from_logits, name, **kwargs)
        self.class_weight = class_weight and tuple(class_weight)

    def get_config(self):
        return {**super().get_config(), "class_weight": self.class_weight}

    def call(self, y_true, y_pred):
        logits = y_pred if self.from_logits else logits_of(y_pred)
        if logits is None:
            # 1 - 2^-24 is the largest number below 1.
            below_one = ops.minimum(ops.cast(y_pred, "float32"), 1 - 2**-24)
            logits = _log(y_pred) - ops.log1p(-below_one)
        targets, smoothing = _as_targets(y_true, y_pred), self.label_smoothing
        if self.class_weight is None:
            return keras.losses.binary_crossentropy(
                targets, logits, from_logits=True, label_smoothing=smoothing
            )
        logits = ops.cast(logits, "float32")
        targets = ops.cast(targets, "float32") * (1 - smoothing) + smoothing / 2
        losses = ops.binary_crossentropy(targets, logits, from_logits=True)
        return ops.mean(losses * ops.convert_to_tensor(self.class_weight, "float32"), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vitx")
class SoftDistillation(keras.losses.Loss):
    r"""Kullback-Leibler divergence between a teacher and a student, at a temperature.

    $\tau^2\, \mathrm{KL}(p_\tau \,\|\, q_\tau)$ with $p_\tau \propto p^{1/\tau}$ for the teacher
    and $q_\tau$ for the student (Hinton et al., 2015; DeiT, Section 3). DeiT's released code also
    divides by the number of classes $K$. Labels: the teacher's probabilities, `(..., K)`, like the
    predictions.

    Args:
        temperature: $\tau$, above 0.
        from_logits: Whether predictions are logits rather than probabilities.
        name: Name of the loss.
    """

    def __init__(
        self,
        temperature: float = 3.0,
        from_logits: bool = False,
        name: str = "soft_distillation",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.temperature = temperature
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        # The logarithms of probabilities are logits, up to a constant.
        student = y_pred if self.from_logits else _log(y_pred)
        teacher = ops.log_softmax(_log(y_true) / self.temperature)
        student = ops.log_softmax(student / self.temperature)
        return self.temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)

    def get_config(self):
        arguments = {"temperature": self.temperature, "from_logits": self.from_logits}
        return {**super().get_config(), **arguments}


@keras.saving.register_keras_serializable(package="keras_vitx")
class PerHead(keras.losses.Loss):
    r"""A loss per classifier or label, by name: $\sum_i w_i\, \mathrm{loss}_i(y_i, \hat y_i)$.

    `model.compile(loss={...}, loss_weights={...})` makes one. A model with one classifier may have
    several labels per image, such as `{"head": ..., "teacher": ...}`, each of which is compared
    with its prediction. In evaluation the loss is that of `"head"`.

    Args:
        losses: A `keras.losses.Loss` per head or label, by name. Heads without an entry use that of
            `"head"`; a ValueError is raised if it is missing.
        weights: Weights in the sum of losses, by name, in place of the model's own (for a model
            with one classifier: 1).
        name: Name of the loss.
    """

    def __init__(
        self,
        losses: Mapping[str, keras.losses.Loss],
        weights: Mapping[str, float] | None = None,
        name: str = "per_head",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        losses = {head: _from_config(loss) for head, loss in losses.items()}
        if "head" not in losses:
            raise ValueError(f"`losses` must have a loss for 'head'. Received: {sorted(losses)}.")
        self.losses, self.weights = losses, dict(weights or {})

    def call(self, y_true, y_pred):
        return self.losses["head"].call(y_true, y_pred)

    def get_config(self):
        losses = keras.saving.serialize_keras_object(self.losses)
        return {**super().get_config(), "losses": losses, "weights": self.weights}


@keras.saving.register_keras_serializable(package="keras_vitx")
class FunctionLoss(keras.losses.Loss):
    """The mean of `function(labels, predictions)` over a batch, weighted by sample."""

    def __init__(self, function: Callable | dict, name: str = "function_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.function = _from_config(function)

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)

    def get_config(self):
        function = keras.saving.serialize_keras_object(self.function)
        return {**super().get_config(), "function": function}


def as_loss(loss: object) -> keras.losses.Loss:
    """Return one compiled loss as an object that averages over a batch."""
    losses = keras.tree.flatten(loss)
    rule = "`loss` must be one loss, or a dictionary with one per head, as in `losses.PerHead`."
    check(len(losses) == 1, rule, loss)
    loss = keras.losses.get(losses[0])
    return loss if isinstance(loss, keras.losses.Loss) else FunctionLoss(loss)


FUNCTIONS = {
    keras.losses.sparse_categorical_crossentropy: keras.losses.SparseCategoricalCrossentropy,
    keras.losses.categorical_crossentropy: keras.losses.CategoricalCrossentropy,
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
}
OF_SOFTMAX = (
    *(SmoothedCrossentropy, SoftDistillation),
    *(keras.losses.SparseCategoricalCrossentropy, keras.losses.CategoricalCrossentropy),
)
OF_SIGMOID = (SigmoidCrossentropy, keras.losses.BinaryCrossentropy)


def loss_of_logits(loss: object, activation: str) -> keras.losses.Loss | None:
    """Return the loss of logits that a compiled loss of their softmax or sigmoid is; or None.

    Near 0 and 1, probabilities in float32 lose what their logits tell, and Keras clips them.
    """
    if isinstance(loss, PerHead):
        losses = {name: loss_of_logits(part, activation) for name, part in loss.losses.items()}
        return None if None in losses.values() else PerHead(losses, loss.weights)
    loss = as_loss(loss)
    if isinstance(loss, FunctionLoss) and loss.function in FUNCTIONS:
        loss = FUNCTIONS[loss.function]()
    kinds = {"softmax": OF_SOFTMAX, "sigmoid": OF_SIGMOID}[activation]
    if type(loss) not in kinds or loss.from_logits:
        return None
    return type(loss).from_config({**loss.get_config(), "from_logits": True})


def _from_config(value):
    """Return what a config describes; other objects as they are."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def _as_targets(labels, outputs):
    """Return labels in the shape of the outputs: integers as one-hot rows."""
    classes = outputs.shape[-1]
    if len(labels.shape) == len(outputs.shape) and labels.shape[-1] == classes:
        return labels
    labels = ops.reshape(labels, ops.shape(outputs)[:-1])
    if classes == 1:
        return ops.expand_dims(labels, -1)
    rows = ops.one_hot(ops.cast(labels, "int32"), classes, dtype=outputs.dtype)
    # Of a label out of range, which has no row, the loss would be 0.
    return ops.where(ops.any(rows > 0, axis=-1, keepdims=True), rows, float("nan"))


def _log(probabilities):
    # Just above the smallest normal number of float32, to which half precision is cast.
    return ops.log(ops.maximum(ops.cast(probabilities, "float32"), 1e-37))
