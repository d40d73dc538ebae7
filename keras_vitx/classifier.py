"""What the outputs of a classifier mean: logits, or probabilities."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import keras

Kind = Literal["logits", "softmax", "sigmoid"]

# Keyed by function, because an activation may be given as a name, a function or a layer.
KINDS: dict[Any, Kind] = {
    keras.activations.linear: "logits",
    keras.activations.softmax: "softmax",
    keras.ops.softmax: "softmax",
    keras.activations.sigmoid: "sigmoid",
    keras.ops.sigmoid: "sigmoid",
}


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

    A classifier is a `Dense`, a layer with the attributes `classes` and `activation`, or a nested
    model that ends in one; `Activation` and `Softmax` layers may follow. Raises a ValueError if the
    model ends in none, has other than one output `(batch, classes)`, or an activation other than
    linear, softmax and sigmoid.
    """
    try:
        shape = model.output_shape
    except AttributeError as error:  # Subclassed, or a Sequential that is not built.
        raise ValueError(
            "`model` must be a built functional or sequential model. "
            f"Received: {_described(model)}."
        ) from error
    if isinstance(shape, dict) or len(shape) != 2 or not isinstance(shape[-1], int):
        raise ValueError(
            "`model` must be a classifier, with one output of shape (batch, classes). "
            f"Received: {_described(model)}, with output shape {shape}. Put pooling and a "
            "`keras.layers.Dense(classes)` on top."
        )
    for layer in _from_the_end(model):
        follows = isinstance(layer, (keras.layers.Activation, keras.layers.Softmax))
        classifies = isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)) or (
            hasattr(layer, "classes") and hasattr(layer, "activation")
        )
        if not follows and not classifies:
            break
        activation = layer if follows else layer.activation
        kind = kind_of(activation)
        if kind is None:
            name = getattr(activation, "__name__", activation)
            raise ValueError(
                "The classifier's activation must be None (logits), 'softmax' or 'sigmoid'. "
                f"Received: {name!r} in layer {layer.name!r} of {_described(model)}."
            )
        if classifies or kind != "logits":
            return Outputs(kind, shape[-1])
    raise ValueError(
        "`model` must end in a classifier (include_top=True, or a Dense of your own on top). "
        f"Received: {_described(model)}, which ends in {layer.name!r} ({type(layer).__name__})."
    )


def kind_of(activation: Any) -> Kind | None:
    """Return the kind of an activation (a name, a function or a layer), or None if it has none."""
    if isinstance(activation, keras.layers.Softmax):
        return "softmax" if activation.axis in (-1, 1) else None
    if isinstance(activation, keras.layers.Activation):
        activation = activation.activation
    return KINDS.get(keras.activations.get(activation))


def _from_the_end(model: keras.Model) -> Iterator[Any]:
    """Yield the layers of a model in reverse order, including those of nested models."""
    # The operations of a functional model include those that are not layers.
    for layer in reversed(getattr(model, "operations", None) or model.layers):
        if isinstance(layer, keras.Model):
            yield from _from_the_end(layer)
        else:
            yield layer


def _described(model):
    return f"{type(model).__name__} {getattr(model, 'name', model)!r}"
