"""LayerScale and residual scales, folded into the last projection of a branch."""

from typing import Any

import keras

from keras_vitx.export.fusing.values import Values
from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    CarryingBlock,
    ClassAttention,
    ClassBlock,
    ContextBroadcasting,
    GatedPositionalAttention,
    LayerScale,
    PositionalAttention,
    SharedAttention,
)

BLOCKS = (Block, ClassBlock, CarryingBlock)
ATTENTION = (
    Attention,
    ClassAttention,
    SharedAttention,
    AccumulatingAttention,
    PositionalAttention,
    GatedPositionalAttention,
)
LAST = {MLP: "fc2", **dict.fromkeys(ATTENTION, "proj")}
"""The last `Dense` of each layer that may be a branch of a block."""


def fold_scales(layer: keras.layers.Layer, arguments: dict[str, Any], values: Values) -> None:
    r"""Fold the scales of a block, or of the layers after a projection, into that projection.

    $\gamma \odot (x W + b) = x (W \gamma) + b \odot \gamma$. With a residual scale $s$,
    $f(\mathrm{norm}(s x)) / s$ is the same with $W / s$, $b / s$ and an epsilon of the norm
    divided by $s^2$.

    Args:
        layer: A layer of the original model.
        arguments: Its serialized arguments, which are changed.
        values: The values of the variables, which are changed.
    """
    if type(layer) in BLOCKS and _takes_scale(layer.attention) and _takes_scale(layer.mlp):
        for branch, scale in ((layer.attention, layer.ls1), (layer.mlp, layer.ls2)):
            if scale is not None:
                _multiply(values, branch, values.read(scale.gamma.path))
                values.drop(scale.gamma.path)
            if layer.residual_scale != 1:
                _multiply(values, branch, 1 / layer.residual_scale)
        epsilon = layer.epsilon / layer.residual_scale**2
        arguments.update(layer_scale=None, residual_scale=1.0, epsilon=epsilon)
    elif _takes_scale(layer):
        pairs = list(zip(layer.on_output, arguments["on_output"], strict=True))
        for part, _ in pairs:
            if type(part) is LayerScale:
                _multiply(values, layer, values.read(part.gamma.path))
                values.drop(part.gamma.path)
        arguments["on_output"] = [inner for part, inner in pairs if type(part) is not LayerScale]


def _takes_scale(branch: keras.layers.Layer) -> bool:
    """Return whether a scale of the output of `branch` folds into its last projection."""
    return type(branch) in LAST and all(map(_commutes, branch.on_output))


def _commutes(layer: keras.layers.Layer) -> bool:
    """Return whether a layer after a projection commutes with a scale per channel."""
    is_linear = type(layer) is ContextBroadcasting and layer.context in ("mean", "class")
    return type(layer) is LayerScale or is_linear


def _multiply(values: Values, branch: keras.layers.Layer, scale: Any) -> None:
    """Multiply the last projection of `branch` by `scale`, per output channel."""
    for variable in getattr(branch, LAST[type(branch)]).weights:
        if variable.path in values:
            values[variable.path] = values.read(variable.path) * scale
