"""The model that is written, made from the one that is given."""

from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_vitx.export.fuse import fuse
from keras_vitx.export.fusing.images import fold_before
from keras_vitx.keras_internals import node_of
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.layers.heads import SeveralHeads

KINDS = ("probabilities", "logits")


@dataclass(frozen=True)
class Prepared:
    """The parts of what is written: preprocessing, then the network.

    Attributes:
        network: The network, with the wanted outputs.
        before: The layer before it that takes pixels, if any.
        size: Height and width of the pixels.
        outputs: Names of the outputs.
    """

    network: keras.Model
    before: keras.layers.Layer | None
    size: tuple[int | None, int | None]
    outputs: tuple[str, ...]

    def joined(self, network: keras.Model | None = None) -> keras.Model:
        """Return one model of the parts, or of the preprocessing and another network."""
        network = network or self.network
        if self.before is None:
            return network
        channels = len(self.before.mean)
        images = keras.Input((*self.size, channels), dtype="uint8", name="images")
        return keras.Model(images, network(self.before(images)), name=network.name)


def prepare(
    model: keras.Model, preprocessing: bool | tuple[int, int], outputs: str | None, any_size: bool
) -> Prepared:
    """Return the parts of the model that is to be written.

    Args:
        model: A built model of one batch of images.
        preprocessing: Whether the file takes pixels; `(height, width)` gives their size.
        outputs: `"probabilities"`, `"logits"` or None, the outputs as they are.
        any_size: Whether pixels of any size can be taken if none is given.

    Raises:
        ValueError: if the outputs can't be changed, or the model's preprocessing is unknown.
    """
    network = with_outputs(model, outputs)
    names = output_names(network)
    if preprocessing is False:
        return Prepared(network, None, (None, None), names)
    before = ImagePreprocessing.of(model)
    size = preprocessing
    if preprocessing is True:
        sides = (round(side / before.crop_ratio) for side in before.size)
        size = (None, None) if any_size else tuple(sides)
    return Prepared(network, before, size, names)


def check_preprocessing(preprocessing: Any) -> None:
    """Check that `preprocessing` is a bool or a height and a width.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(preprocessing, bool):
        expected = "True, False, or the (height, width) of the pixels"
        check_size(preprocessing, "preprocessing", expected)


def check_size(size: Any, argument: str, expected: str) -> None:
    """Check that a size is a height and a width.

    Raises:
        ValueError: if it is not.
    """
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in size):
        raise ValueError(f"{argument} should be {expected}, not {size!r}.")


def fused(parts: Prepared) -> tuple[Prepared, str | None]:
    """Return the parts fused, or as they are and the reason why they can't be fused."""
    try:
        network = fuse(parts.network)
    except ValueError as error:
        return parts, str(error)
    before = parts.before
    if before is not None:
        before = fold_before(before, network)
    return replace(parts, network=network, before=before), None


def output_names(model: keras.Model) -> tuple[str, ...]:
    """Return the names of a model's outputs in an exported file.

    One output is named by what it is: `probabilities`, `logits`, or else `features`. The
    outputs of a model with several have their keys, if it returns a dictionary, or the names
    of its output layers.
    """
    outputs = getattr(model, "output", None)
    if isinstance(outputs, dict):
        # In the order in which Keras flattens them.
        return tuple(sorted(outputs))
    if len(model.outputs) == 1:
        return (_kind(model),)
    names = list(model.output_names)
    return tuple(
        f"{name}_{names[:index].count(name)}" if name in names[:index] else name
        for index, name in enumerate(names)
    )


def _kind(model: keras.Model) -> str:
    last = node_of(model.outputs[0]).operation
    if isinstance(last, keras.Model) and getattr(last, "outputs", None):
        return _kind(last)
    if isinstance(last, keras.layers.Softmax) or type(last).__name__ in ("Softmax", "Sigmoid"):
        return "probabilities"
    activation = getattr(last, "activation", None)
    if isinstance(last, (keras.layers.Dense, SeveralHeads, keras.layers.Activation)):
        activation = keras.activations.get(activation)
        if activation in (keras.activations.softmax, keras.activations.sigmoid):
            return "probabilities"
        is_head = not isinstance(last, keras.layers.Activation)
        return "logits" if is_head and activation is keras.activations.linear else "features"
    return "features"


def with_outputs(model: keras.Model, outputs: str | None) -> keras.Model:
    """Return a model whose one output is probabilities or logits; the same one for None.

    Raises:
        ValueError: if `outputs` is unknown, or the model has no classifier that can give them.
    """
    if outputs is None:
        return model
    if outputs not in KINDS:
        raise ValueError(f"outputs should be None, 'probabilities' or 'logits', not {outputs!r}.")
    kind = _kind(model) if len(model.outputs) == 1 else "features"
    if kind == outputs:
        return model
    activation = "softmax" if outputs == "probabilities" else "linear"
    head = model.steps[-1] if hasattr(model, "steps") else node_of(model.outputs[0]).operation
    if kind not in KINDS or not hasattr(head, "activation"):
        raise ValueError(
            f"outputs={outputs!r} needs a model that ends in a classifier; {model.name!r} ends in "
            f"{getattr(head, 'name', head)!r}."
        )
    if hasattr(model, "steps"):
        return _with_activation(model, activation)
    (features,) = node_of(model.outputs[0]).input_tensors
    changed = _copied(head, activation)
    result = keras.Model(model.inputs, changed(features), name=model.name)
    _assign(changed.weights, head.weights)
    return result


def _copied(head, activation):
    return type(head).from_config({**head.get_config(), "activation": activation})


def _with_activation(model, activation):
    """Return a `Chain` with the same weights and another activation of its head."""
    config = model.get_config()
    config["layers"][-1]["config"]["activation"] = activation
    changed = type(model).from_config(config)
    _assign(changed.weights, model.weights)
    return changed


def _assign(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        target.assign(ops.convert_to_numpy(source))
