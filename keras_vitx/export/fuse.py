"""Folding of scales into the weights of a model, for inference."""

from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import sublayers

# Layers by their registered names, because `export` imports none; a subclass has its own.
BLOCKS = {f"keras_vitx>{name}" for name in ("Block", "ClassBlock", "CarryingBlock")}
LAST = {
    "keras_vitx>MLP": "fc2",
    "keras_vitx>Attention": "proj",
    "keras_vitx>ClassAttention": "proj",
    "keras_vitx>SharedAttention": "proj",
    "keras_vitx>AccumulatingAttention": "proj",
    "keras_vitx>PositionalAttention": "proj",
    "keras_vitx>GatedPositionalAttention": "proj",
}
"""The last `Dense` of each layer that may be a branch of a block."""
RATES = ("drop_path", "dropout", "proj_dropout")


def fuse(model: keras.Model) -> keras.Model:
    r"""Return a model for inference, with scales folded into the weights.

    The outputs are the same, up to rounding. The given model is not modified, and the result is
    not compiled.

    - LayerScale: $\gamma \odot (x W + b) = x (W \gamma) + b \odot \gamma$, with $W, b$ the last
      projection of the attention or the MLP.
    - Residual scale: $f(\mathrm{norm}(s x)) / s$ is the same with $W / s$, $b / s$ and an
      epsilon of the norm divided by $s^2$.
    - The rates of dropout and stochastic depth are 0.

    A block keeps its scales if its attention or its MLP is a custom layer, or ends in layers
    (`on_output`) that do not commute with a scale per channel.

    Args:
        model: A `Chain`.

    Raises:
        ValueError: if `model` is not a `Chain`, or has LoRA or quantized layers, or
            if its variables can't be told apart or placed.
    """
    if not (isinstance(model, keras.Model) and hasattr(model, "steps")):
        raise ValueError(
            f"`model` must be a model of keras_vitx, a Chain. Received: {type(model).__name__}. "
            "keras_vitx.as_chain converts a model that was cut from a Chain."
        )
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False) or layer.quantization_mode is not None:
            raise ValueError(
                "`model` must have neither LoRA nor quantized layers. "
                f"Received: {model.name!r}, whose layer {layer.path!r} has."
            )
    paths = [variable.path for variable in model.weights]
    if len(set(paths)) < len(paths):
        raise ValueError(f"`model` has several variables of one path: {model.name!r}.")
    config = model.get_config()
    values = {
        variable.path: keras.ops.convert_to_numpy(variable).copy() for variable in model.weights
    }
    for layer, described in list(_pairs(model.steps, config["layers"])):
        arguments = described["config"]
        if _kind(layer) in BLOCKS and _scales(layer.attention) and _scales(layer.mlp):
            for branch, scale in ((layer.attention, layer.ls1), (layer.mlp, layer.ls2)):
                gamma = 1.0 if scale is None else values.pop(scale.gamma.path)
                _multiply(values, branch, gamma / layer.residual_scale)
            epsilon = layer.epsilon / layer.residual_scale**2
            arguments.update(layer_scale=None, residual_scale=1.0, epsilon=epsilon)
        elif _kind(layer) in LAST and _scales(layer):
            pairs = list(zip(layer.on_output, arguments["on_output"], strict=True))
            for part, _ in pairs:
                if _is_scale(part):
                    _multiply(values, layer, values.pop(part.gamma.path))
            arguments["on_output"] = [inner for part, inner in pairs if not _is_scale(part)]
        if _kind(layer).startswith("keras_vitx>"):
            arguments.update({name: 0.0 for name in RATES if name in arguments})
    classes = {_kind(layer): type(layer) for layer in sublayers(model)}
    fused = type(model).from_config(config, custom_objects=classes)
    # By order, since the names of unnamed children of custom layers differ between instances.
    kept = [variable for variable in model.weights if variable.path in values]
    if [(v.name, v.shape) for v in kept] != [(v.name, v.shape) for v in fused.weights]:
        raise ValueError(f"`model` has variables that can't be placed: {model.name!r}.")
    for variable, before in zip(fused.weights, kept, strict=True):
        variable.assign(values[before.path])
    return fused


def _kind(layer: keras.layers.Layer) -> str:
    return keras.saving.get_registered_name(type(layer))


def _is_scale(layer: keras.layers.Layer) -> bool:
    return _kind(layer) == "keras_vitx>LayerScale"


def _commutes(layer: keras.layers.Layer) -> bool:
    """Return whether a layer after a projection commutes with a scale per channel."""
    is_context = _kind(layer) == "keras_vitx>ContextBroadcasting"
    return _is_scale(layer) or (is_context and layer.context in ("mean", "class"))


def _scales(branch: keras.layers.Layer) -> bool:
    """Return whether a scale of the output of `branch` folds into its last projection."""
    return _kind(branch) in LAST and all(map(_commutes, branch.on_output))


def _multiply(values: dict[str, np.ndarray], branch: keras.layers.Layer, scale: Any) -> None:
    """Multiply the weights of the last projection of `branch` by `scale`, per channel."""
    for variable in getattr(branch, LAST[_kind(branch)]).weights:
        values[variable.path] = values[variable.path] * scale


def _pairs(layers: Any, described: Any):
    """Yield each layer with its serialized form, including those given as arguments."""
    if isinstance(layers, keras.layers.Layer):
        yield layers, described
        for name, inner in described["config"].items():
            yield from _pairs(getattr(layers, name, None), inner)
    elif isinstance(layers, (list, tuple)) and isinstance(described, (list, tuple)):
        for layer, inner in zip(layers, described, strict=True):
            yield from _pairs(layer, inner)
