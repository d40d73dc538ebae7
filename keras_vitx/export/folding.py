"""The rules of `keras_vitx.fuse`: one function per kind of operation that is folded."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
    CarryingBlock,
    ClassAttention,
    ClassBlock,
    ContextBroadcasting,
    ConvStem,
    GatedPositionalAttention,
    HeadMixing,
    ImagePreprocessing,
    LayerScale,
    LocalMapConvolution,
    PatchEmbedding,
    PositionalAttention,
    SharedAttention,
)
from keras_vitx.layers.maps import fold

LEVELS = 255.0
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


class Values(dict):
    """Values by the paths of the variables: a variable of the original model, or a new array.

    Only what changes is copied.
    """

    @classmethod
    def of(cls, model: keras.Model) -> "Values":
        """Return the values of all variables of `model`."""
        return cls({variable.path: variable for variable in model.weights})

    def read(self, path: str) -> np.ndarray:
        """Return a value as a float32 array."""
        return array(self[path])

    def drop(self, prefix: str) -> None:
        """Drop the variable of this path, or those of the layer of this path."""
        for path in [path for path in self if path == prefix or path.startswith(f"{prefix}/")]:
            del self[path]


def array(value: Any) -> np.ndarray:
    """Return a tensor or a variable as a float32 array."""
    return ops.convert_to_numpy(ops.stop_gradient(ops.cast(value, "float32")))


def merge_lora(model: keras.Model, values: Values) -> None:
    r"""Replace each kernel $W$ with an update by $W + \frac{\alpha}{r} A B$.

    Args:
        model: The original model.
        values: The values of the variables, which are changed.
    """
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            name = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
            paths = {variable.name: variable.path for variable in layer.weights}
            values[paths[name]] = array(getattr(layer, name))
            values.drop(paths[f"lora_{name}_a"])
            values.drop(paths[f"lora_{name}_b"])


def without_lora(described: Any) -> Any:
    """Return a serialized model without the arguments of LoRA."""
    if isinstance(described, (list, tuple)):
        return [without_lora(item) for item in described]
    if not isinstance(described, dict):
        return described
    # `Layer.get_config` lists there what was adapted after construction.
    result = {name: without_lora(value) for name, value in described.items() if name != "adapted"}
    if str(described.get("module")).startswith("keras."):
        inner = result["config"]
        result["config"] = {
            name: inner[name] for name in inner if name not in ("lora_rank", "lora_alpha")
        }
    return result


def fold_norms(layer: keras.layers.Layer, arguments: dict[str, Any], values: Values) -> None:
    """Simplify the layers over maps of an attention.

    - A normalization over heads is folded into the mix or the convolution before it.
    - The bias of a mix right before the softmax is dropped: it is constant over the keys.

    Normalizations inside a layer are folded by its `inference_form`.

    Args:
        layer: A layer of the original model.
        arguments: Its serialized arguments, which are changed.
        values: The values of the variables, which are changed.
    """
    if type(layer) not in ATTENTION:
        return
    for name in ("on_logits", "on_weights"):
        kept: list[tuple[keras.layers.Layer, dict[str, Any]]] = []
        for part, described in zip(getattr(layer, name), arguments[name], strict=True):
            if _is_norm(part) and kept and _is_linear(kept[-1][0]):
                before, its_description = kept[-1]
                _fold(part, before, values)
                its_description["config"]["use_bias"] = True
            else:
                kept.append((part, described))
        arguments[name] = [described for _, described in kept]
        if name == "on_logits" and kept and type(kept[-1][0]) is HeadMixing:
            last, described = kept[-1]
            values.drop(f"{last.path}/bias")
            described["config"]["use_bias"] = False


def _is_norm(layer: keras.layers.Layer) -> bool:
    return type(layer) is keras.layers.BatchNormalization and layer.axis in (1, -3)


def _is_linear(layer: keras.layers.Layer) -> bool:
    # A spatial convolution leaves the entries of the class token out.
    is_convolution = type(layer) is LocalMapConvolution and layer.constraint != "spatial"
    return type(layer) is HeadMixing or is_convolution


def _fold(norm: keras.layers.BatchNormalization, layer: keras.layers.Layer, values: Values) -> None:
    kernel, bias = f"{layer.path}/kernel", f"{layer.path}/bias"
    old = values.read(bias) if bias in values else None
    values[kernel], values[bias] = map(array, fold(norm, values.read(kernel), old))
    values.drop(norm.path)


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


def fold_images(
    preprocessing: keras.layers.Layer,
    arguments: dict[str, Any],
    embedding: keras.layers.Layer,
    values: Values,
) -> None:
    r"""Fold the mean and the standard deviation of an `ImagePreprocessing` into an embedding.

    With pixels $x$ in 0..255, $W (x / 255 - \mu) / \sigma + b = W' x + b'$ with
    $W' = W / (255 \sigma)$ and $b' = b - \sum W \mu / \sigma$. A `ConvStem` pads the
    normalized image with zeros, which are pixels of value $255 \mu$ before; so the mean is
    still subtracted there, and only $255 \sigma$ is folded.

    Args:
        preprocessing: A layer of the original model.
        arguments: Its serialized arguments, which are changed.
        embedding: The next layer.
        values: The values of the variables, which are changed.
    """
    if type(preprocessing) is not ImagePreprocessing or preprocessing.normalize is not True:
        return
    mean, std = (np.array(each, "float32") for each in (preprocessing.mean, preprocessing.std))
    if type(embedding) is PatchEmbedding:
        kernel, bias = f"{embedding.proj.path}/kernel", f"{embedding.proj.path}/bias"
        shift = np.einsum("ijcf,c->f", values.read(kernel), mean / std)
        values[bias] = values.read(bias) - shift
        arguments["normalize"] = False
    elif type(embedding) is ConvStem and embedding.convolutions:
        kernel = f"{embedding.convolutions[0].path}/kernel"
        arguments["normalize"] = "mean"
    else:
        return
    values[kernel] = values.read(kernel) / (LEVELS * std[:, None])


def fold_before(preprocessing: ImagePreprocessing, network: keras.Model) -> ImagePreprocessing:
    """Fold the normalization of a layer before a network into it.

    Args:
        preprocessing: The layer, which is not changed.
        network: A fused network, whose first layer is changed.

    Returns:
        The layer without what the network does now.
    """
    arguments, values = preprocessing.get_config(), Values.of(network)
    fold_images(preprocessing, arguments, network.steps[0], values)
    for variable in network.weights:
        if values[variable.path] is not variable:
            variable.assign(values[variable.path])
    return type(preprocessing).from_config(arguments)
