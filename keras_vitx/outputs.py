"""What a model takes and returns: logits or probabilities, of which classes, for which task."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import keras
import numpy as np

from keras_vitx.losses import SigmoidCrossentropy, SmoothedCrossentropy

Kind = Literal["logits", "softmax", "sigmoid"]

# Keyed by function, because an activation may be given as a name, a function or a layer.
KINDS: dict[Any, Kind] = {
    keras.activations.linear: "logits",
    keras.activations.softmax: "softmax",
    keras.ops.softmax: "softmax",
    keras.activations.sigmoid: "sigmoid",
    keras.ops.sigmoid: "sigmoid",
}

ACTIVATIONS = (keras.layers.Activation, keras.layers.Softmax)
DENSE = (keras.layers.Dense, keras.layers.EinsumDense)


@runtime_checkable
class Head(Protocol):
    """A layer of one or several classifiers, which returns logits."""

    classes: int


class Outputs(NamedTuple):
    """The outputs of a classifier, `(batch, classes)`: logits or probabilities.

    Those of a softmax sum to 1 over the classes; those of a sigmoid are independent.
    """

    kind: Kind
    classes: int

    @property
    def from_logits(self) -> bool:
        """Whether a loss needs `from_logits=True`."""
        return self.kind == "logits"

    def probabilities(self, outputs: Any) -> Any:
        """Return outputs as probabilities; a softmax is applied to logits."""
        return keras.ops.softmax(outputs) if self.from_logits else outputs


def outputs_of(model: keras.Model) -> Outputs:
    """Return the kind and number of a classifier's outputs, read from its last layers.

    A classifier is a `Dense`, a layer with the attribute `classes`, which returns logits, or a
    nested model that ends in one; `Activation` and `Softmax` layers may follow. Raises a ValueError
    if the model ends in none, has other than one output `(batch, classes)`, or an activation other
    than linear, softmax and sigmoid.
    """
    try:
        shape = model.output_shape
    except AttributeError as error:  # Subclassed, or a Sequential that is not built.
        raise ValueError(
            f"`model` must be a built functional or sequential model. Received: {described(model)}."
        ) from error
    if isinstance(shape, dict) or len(shape) != 2 or not isinstance(shape[-1], int):
        raise ValueError(
            "`model` must be a classifier, with one output of shape (batch, classes). "
            f"Received: {described(model)}, with output shape {shape}. Put pooling and a "
            "`keras.layers.Dense(classes)` on top."
        )
    for layer in reversed(layers_of(model)):
        if isinstance(layer, keras.layers.Average):
            inputs = [(keras.utils.get_source_inputs(each), each) for each in layer.input]
            members = {outputs_of(keras.Model(*one)) for one in inputs}
            if len(members) == 1:
                return members.pop()
        follows, is_dense = isinstance(layer, ACTIVATIONS), isinstance(layer, DENSE)
        classifies = is_dense or isinstance(layer, Head)
        if not follows and not classifies:
            break
        activation = layer if follows else layer.activation if is_dense else None
        kind = kind_of(activation)
        if kind is None:
            name = getattr(activation, "__name__", activation)
            raise ValueError(
                "The classifier's activation must be None (logits), 'softmax' or 'sigmoid'. "
                f"Received: {name!r} in layer {layer.name!r} of {described(model)}."
            )
        if classifies or kind != "logits":
            return Outputs(kind, shape[-1])
    raise ValueError(
        "`model` must end in a classifier (include_top=True, or a Dense of your own on top). "
        f"Received: {described(model)}, which ends in {layer.name!r} ({type(layer).__name__})."
    )


def kind_of(activation: Any) -> Kind | None:
    """Return the kind of an activation (a name, a function or a layer), or None if it has none."""
    if isinstance(activation, keras.layers.Softmax):
        return "softmax" if activation.axis in (-1, 1) else None
    if isinstance(activation, keras.layers.Activation):
        activation = activation.activation
    return KINDS.get(keras.activations.get(activation))


def class_names_of(model: Any) -> tuple[str, ...] | None:
    """Return the `class_names` of a model, or of the model that is its last layer; None without."""
    while model is not None:
        if (names := getattr(model, "class_names", None)) is not None:
            return tuple(names)
        model = next(iter(getattr(model, "layers", ())[-1:]), None)
    return None


TaskKind = Literal["classes", "distributions", "binary", "multi-label", "regression"]


@dataclass(frozen=True)
class Task:
    """A kind of task, with its loss and metrics.

    | kind | head | labels | loss |
    |---|---|---|---|
    | `"classes"` | softmax, logits | integers `(n,)` or `(n, 1)` | cross entropy |
    | `"distributions"` | softmax, logits | one-hot or soft `(n, classes)` | cross entropy |
    | `"classes"` | sigmoid | integers | binary cross entropy of the one-hot labels |
    | `"multi-label"` | sigmoid | `(n, classes)` in 0..1 | binary cross entropy |
    | `"binary"` | sigmoid, one output | 0 or 1, `(n,)` or `(n, 1)` | binary cross entropy |
    | `"regression"` | linear | floats, `(n, outputs)`, or `(n,)` for one | squared error |
    """

    kind: TaskKind
    outputs: Outputs

    def loss(self, label_smoothing: float = 0.0) -> keras.losses.Loss:
        """Return the loss; the one reported in evaluation has no label smoothing."""
        if self.kind == "regression":
            return keras.losses.MeanSquaredError(name="squared_error")
        if self.outputs.kind == "sigmoid":
            return SigmoidCrossentropy(label_smoothing)
        return SmoothedCrossentropy(label_smoothing, from_logits=self.outputs.from_logits)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Return new metrics, with more than five classes also the top-5 accuracy."""
        metrics = keras.metrics
        names = {"multi-label": "binary_accuracy", "regression": "mean_absolute_error"}
        name = names.get(self.kind, "accuracy")
        accuracy, top_k = {
            "classes": (metrics.SparseCategoricalAccuracy, metrics.SparseTopKCategoricalAccuracy),
            "distributions": (metrics.CategoricalAccuracy, metrics.TopKCategoricalAccuracy),
            "binary": (metrics.BinaryAccuracy, None),
            "multi-label": (metrics.BinaryAccuracy, None),
            "regression": (metrics.MeanAbsoluteError, None),
        }[self.kind]
        has_top_5 = top_k is not None and self.outputs.classes > 5
        return [accuracy(name), *([top_k(5, "top_5_accuracy")] if has_top_5 else [])]

    def compiled(self, label_smoothing: float) -> tuple[keras.losses.Loss, dict[str, Any]]:
        """Return the loss of evaluation, and the loss and metrics for `model.compile`."""
        return self.loss(), {"loss": self.loss(label_smoothing), "metrics": self.metrics()}


def task_of(outputs: Outputs, labels: Any) -> Task:
    """Return the task of a batch of labels; a ValueError if they don't fit the outputs."""
    labels, classes = np.asarray(labels), outputs.classes
    integral = labels.dtype.kind in "iub" or bool((labels == np.floor(labels)).all())
    in_unit = bool((labels >= 0).all() and (labels <= 1).all())
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and classes == 1:
        if outputs.kind == "sigmoid" and in_unit:
            return Task("binary", outputs)
        if outputs.kind == "logits" and labels.dtype.kind == "f":
            return Task("regression", outputs)
    elif labels.ndim == 1 and integral:
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError(
                f"Labels must be in 0..{classes - 1} for a model of {classes} outputs. Received: "
                f"{labels.min():.0f}..{labels.max():.0f}. Set classes={labels.max() + 1:.0f}, or, "
                "for regression, classes=1 and classifier_activation=None, with floats as labels."
            )
        return Task("classes", outputs)
    elif labels.ndim == 2 and labels.shape[1] == classes:
        if outputs.kind == "sigmoid" and in_unit:
            return Task("multi-label", outputs)
        sums_to_one = in_unit and bool(np.allclose(labels.sum(-1), 1, atol=1e-3))
        if outputs.kind != "sigmoid" and sums_to_one:
            return Task("distributions", outputs)
        if outputs.kind == "logits" and not (integral and in_unit):
            return Task("regression", outputs)
    raise ValueError(
        f"A head of {classes} outputs ({outputs.kind}) and labels of shape {labels.shape} "
        f"({labels.dtype}, from {labels.min():g} to {labels.max():g}) do not determine a task. "
        "Expected: softmax or logits with integers or rows that sum to 1; sigmoid with rows of 0 "
        "and 1 (several labels per image); a linear head with other floats. Create the model with "
        'classifier_activation="softmax", "sigmoid" or None (linear), or compile it before `fit`.'
    )


def layers_of(model: keras.Model) -> list[Any]:
    """Return the layers of a model in order, including other operations and nested models'."""
    layers = getattr(model, "operations", None) or model.layers
    nested = (layers_of(layer) if isinstance(layer, keras.Model) else [layer] for layer in layers)
    return [layer for group in nested for layer in group]


def is_chain(model: Any) -> bool:
    """Return whether a model is a list of layers, run in order: a `models.Chain`."""
    return isinstance(model, keras.Model) and hasattr(model, "token_layout")


def described(model: keras.Model) -> str:
    """Return the class and the name of a model, for an error message."""
    return f"{type(model).__name__} {getattr(model, 'name', model)!r}"
