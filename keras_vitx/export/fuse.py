"""An equal model for inference, with scales, normalizations and constants folded away."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras

from keras_vitx.export.folding import (
    Values,
    array,
    fold_images,
    fold_norms,
    fold_scales,
    merge_lora,
    without_lora,
)
from keras_vitx.keras_internals import children, sublayers

RATES = ("drop_path", "dropout", "proj_dropout")


def fuse(model: keras.Model) -> keras.Model:
    r"""Return an equal model for inference, with fewer operations.

    The outputs are the same, up to rounding. The given model is not modified. The result is a
    `Chain`, not compiled, which saves, loads and exports like any other.

    - LayerScale and residual scales are folded into the last projection of each branch.
    - BatchNormalization is folded into the mixes and convolutions of attention maps and of
      stems. The bias of a mix right before the softmax, which has no effect, is dropped.
    - ConViT's gates, and its positional map per axis, are constants.
    - The mean and the standard deviation of an `ImagePreprocessing` are folded into the patch
      embedding after it; with a `ConvStem`, which pads the image, the standard deviation only.
    - LoRA updates are merged into the kernels.
    - The rates of dropout and stochastic depth are 0.

    Other layers of the package with an equal form for inference take part by their method
    `inference_form`. Custom layers, and layers inside them, stay as they are, and so do scales
    before a custom layer or one that does not commute with them.

    Args:
        model: A `Chain`.

    Raises:
        ValueError: if `model` is not a `Chain`, or has quantized layers, or if its variables
            can't be told apart or placed.
    """
    _check(model)
    values = Values.of(model)
    config = without_lora(model.get_config())
    merge_lora(model, values)
    for layer, arguments in list(_pairs(model.steps, config["layers"])):
        fold_norms(layer, arguments, values)
        _take_inference_form(layer, arguments, values)
        fold_scales(layer, arguments, values)
        arguments.update({name: 0.0 for name in RATES if name in arguments})
    steps = list(zip(model.steps, config["layers"], strict=True))
    for (layer, described), (following, _) in itertools.pairwise(steps):
        fold_images(layer, described["config"], following, values)
    classes = {keras.saving.get_registered_name(type(one)): type(one) for one in sublayers(model)}
    fused = type(model).from_config(config, custom_objects=classes)
    _place(values, model, fused)
    return fused


def _check(model: keras.Model) -> None:
    if not (isinstance(model, keras.Model) and hasattr(model, "steps")):
        raise ValueError(
            f"`model` must be a model of keras_vitx, a Chain. Received: {type(model).__name__}. "
            "keras_vitx.as_chain converts a line of layers, or a model cut from a Chain."
        )
    for layer in sublayers(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                "`model` must not have quantized layers: fuse it before it is quantized. "
                f"Received: {model.name!r}, whose layer {layer.path!r} is quantized."
            )
    if len({variable.path for variable in model.weights}) < len(model.weights):
        raise ValueError(f"`model` has several variables of one path: {model.name!r}.")


def _pairs(layers: Any, described: Any) -> Iterator[tuple[keras.layers.Layer, dict[str, Any]]]:
    """Yield each layer of the package with its serialized arguments, outer layers first."""
    if isinstance(layers, keras.layers.Layer):
        if type(layers).__module__.startswith("keras_vitx."):
            arguments = described["config"]
            yield layers, arguments
            for name, inner in arguments.items():
                yield from _pairs(getattr(layers, name, None), inner)
    elif isinstance(layers, (list, tuple)) and isinstance(described, (list, tuple)):
        for layer, inner in zip(layers, described, strict=True):
            yield from _pairs(layer, inner)


def _take_inference_form(layer, arguments, values) -> None:
    if not hasattr(layer, "inference_form"):
        return
    form = layer.inference_form()
    arguments.update(form.arguments)
    for name in form.dropped:
        values.drop(f"{layer.path}/{name}")
    values.update({f"{layer.path}/{name}": array(value) for name, value in form.weights.items()})


def _place(values: Values, model: keras.Model, fused: keras.Model) -> None:
    """Assign the values to the variables of `fused`, of the same paths.

    In custom layers and nested models, by order: the names of their unnamed children and the
    paths of nested models differ between instances.
    """
    paths = {}
    for old, new in zip(_foreign_layers(model), _foreign_layers(fused), strict=True):
        kept = [variable for variable in old.weights if variable.path in values]
        if [(v.name, v.shape) for v in kept] == [(v.name, v.shape) for v in new.weights]:
            paths.update({b.path: a.path for a, b in zip(kept, new.weights, strict=True)})
    found = [paths.get(variable.path, variable.path) for variable in fused.weights]
    if sorted(found) != sorted(values):
        raise ValueError(f"`model` has variables that can't be placed: {model.name!r}.")
    for variable, path in zip(fused.weights, found, strict=True):
        variable.assign(values.pop(path))


def _foreign_layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield the custom layers and models inside `layer`, without those inside them."""
    for child in children(layer):
        is_custom = type(child).__module__.split(".")[0] not in ("keras", "keras_vitx")
        if is_custom or isinstance(child, keras.Model):
            yield child
        else:
            yield from _foreign_layers(child)
