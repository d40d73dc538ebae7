"""What a model returns: logits or probabilities, and of which classes."""

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import keras

from keras_vitx.checks import check

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
            f"`model` must be a built functional or sequential model. Received: {describe(model)}."
        ) from error
    is_known = not isinstance(shape, dict) and len(shape) == 2 and isinstance(shape[-1], int)
    rule = "`model` must be a classifier, with one output of shape (batch, classes): put pooling "
    check(is_known, rule + "and a `keras.layers.Dense(classes)` on top.", f"output shape {shape}")
    for layer in reversed(layers_of(model)):
        if isinstance(layer, keras.layers.Average):
            inputs = [(keras.utils.get_source_inputs(tensor), tensor) for tensor in layer.input]
            members = {outputs_of(keras.Model(*nested)) for nested in inputs}
            if len(members) == 1:
                return members.pop()
        follows = isinstance(layer, ACTIVATIONS)
        is_dense = isinstance(layer, DENSE)
        classifies = is_dense or isinstance(layer, Head)
        if not follows and not classifies:
            break
        activation = layer if follows else layer.activation if is_dense else None
        kind = kind_of(activation)
        rule = "The classifier's activation must be None (logits), 'softmax' or 'sigmoid'."
        check(kind is not None, rule, (getattr(activation, "__name__", activation), layer.name))
        if classifies or kind != "logits":
            return Outputs(kind, shape[-1])
    raise ValueError(
        "`model` must end in a classifier (include_top=True, or a Dense of your own on top). "
        f"Received: {describe(model)}, which ends in {layer.name!r} ({type(layer).__name__})."
    )


def kind_of(activation: object) -> Kind | None:
    """Return the kind of an activation (a name, a function or a layer), or None if it has none."""
    if isinstance(activation, keras.layers.Softmax):
        return "softmax" if activation.axis in (-1, 1) else None
    if isinstance(activation, keras.layers.Activation):
        activation = activation.activation
    return KINDS.get(keras.activations.get(activation))


def class_names_of(model: object) -> tuple[str, ...] | None:
    """Return the `class_names` of a model, or of the model that is its last layer; None without."""
    while model is not None:
        if (names := getattr(model, "class_names", None)) is not None:
            return tuple(names)
        model = next(iter(getattr(model, "layers", ())[-1:]), None)
    return None


def layers_of(model: keras.Model) -> list[Any]:
    """Return the layers of a model in order, including other operations and nested models'."""
    layers = getattr(model, "operations", None) or model.layers
    flat = []
    for layer in layers:
        flat += layers_of(layer) if isinstance(layer, keras.Model) else [layer]
    return flat


def head_of(model: keras.Model) -> keras.layers.Layer:
    """Return the last layer of a model that is no activation."""
    layers = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.Layer)]
    return next(layer for layer in reversed(layers) if not isinstance(layer, ACTIVATIONS))


def is_chain(model: object) -> bool:
    """Return whether a model is a list of layers, run in order: a `models.Chain`."""
    return isinstance(model, keras.Model) and hasattr(model, "token_layout")


def describe(model: keras.Model) -> str:
    """Return the class and the name of a model, for an error message."""
    return f"{type(model).__name__} {getattr(model, 'name', model)!r}"
