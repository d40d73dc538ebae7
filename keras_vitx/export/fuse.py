"""An equal model for inference, with scales, normalizations and constants folded away."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.export.formats.base import Graph
from keras_vitx.keras_internals import children, sublayers
from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    Block,
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
    SharedMapsBlock,
)
from keras_vitx.layers.maps import fold

RATES = ("drop_path", "dropout", "proj_dropout")
BLOCKS = (Block, ClassBlock, SharedMapsBlock)
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


def fuse(model: keras.Model) -> keras.Model:
    """Return an equal model for inference, with fewer operations.

    The outputs are the same, up to rounding. `model` is not modified. The result is a `Chain`, not
    compiled, which saves, loads and exports like any other.

    - LayerScale and residual scales are folded into the last projection of each branch.
    - BatchNormalization is folded into the mixes and convolutions of attention maps and of
      stems. The bias of a mix right before the softmax, which has no effect, is dropped.
    - ConViT's gates, and its positional map per axis, are constants.
    - The mean and the standard deviation of an `ImagePreprocessing` are folded into the patch
      embedding after it; with a `ConvStem`, which pads the image, the standard deviation only.
    - LoRA updates are merged into the kernels.
    - The rates of dropout and stochastic depth are 0.

    Other layers of the package define a method `inference_form`. Custom layers, and layers inside
    them, don't change, and neither do scales before a custom layer or one that does not commute
    with them.

    Args:
        model: A `Chain`.

    Raises:
        ValueError: if `model` is not a `Chain`, or has quantized layers, or if its variables
            can't be matched with those of the result.
    """
    _check(model)
    values = Values({variable.path: variable for variable in model.weights})
    config = _without_lora(model.get_config())
    _merge_lora(model, values)
    for layer, arguments in list(_pairs(model.steps, config["layers"])):
        _fold_norms(layer, arguments, values)
        if hasattr(layer, "inference_form"):
            form = layer.inference_form()
            arguments.update(form.arguments)
            for name in form.dropped:
                values.drop(f"{layer.path}/{name}")
            for name, value in form.weights.items():
                values[f"{layer.path}/{name}"] = _array(value)
        _fold_scales(layer, arguments, values)
        arguments.update({name: 0.0 for name in RATES if name in arguments})
    for index, (layer, following) in enumerate(itertools.pairwise(model.steps)):
        _fold_images(layer, config["layers"][index]["config"], following, values)
    name_of = keras.saving.get_registered_name
    classes = {name_of(type(layer)): type(layer) for layer in sublayers(model)}
    result = type(model).from_config(config, custom_objects=classes)
    _assign(values, model, result)
    return result


def fuse_graph(graph: Graph) -> tuple[Graph, str | None]:
    """Return the fused graph, preprocessing included, or the same and why it can't be fused."""
    try:
        networks = {name: fuse(network) for name, network in graph.networks.items()}
    except ValueError as error:
        return graph, str(error)
    layer = graph.preprocessing
    if layer is not None:
        network, arguments = networks["serve"], layer.get_config()
        values = Values({variable.path: variable for variable in network.weights})
        _fold_images(layer, arguments, network.steps[0], values)
        for variable in network.weights:
            if values[variable.path] is not variable:
                variable.assign(values[variable.path])
        layer = type(layer).from_config(arguments)
    return replace(graph, networks=networks, preprocessing=layer), None


class Values(dict):
    """Values by the paths of variables: a variable of the original model, or a new array."""

    def read(self, path: str) -> np.ndarray:
        """Return a value as a float32 array."""
        return _array(self[path])

    def drop(self, prefix: str) -> None:
        """Drop the variable at a path, or all variables of the layer there."""
        for path in [path for path in self if path == prefix or path.startswith(f"{prefix}/")]:
            del self[path]


def _array(value: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.stop_gradient(ops.cast(value, "float32")))


def _check(model: keras.Model) -> None:
    if not (isinstance(model, keras.Model) and hasattr(model, "steps")):
        raise ValueError(
            f"`model` must be a model of keras_vitx, a Chain. Received: {type(model).__name__}. "
            "keras_vitx.as_chain converts a sequence of layers, or a model cut from a Chain."
        )
    for layer in sublayers(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                "`model` must not have quantized layers: fuse it before it is quantized. "
                f"Received: {model.name!r}, whose layer {layer.path!r} is quantized."
            )
    if len({variable.path for variable in model.weights}) < len(model.weights):
        raise ValueError(
            f"`model` must not have several variables at one path. Received: {model.name!r}."
        )


def _pairs(layers: Any, config: Any) -> Iterator[tuple[keras.layers.Layer, dict[str, Any]]]:
    """Yield each layer of the package with its serialized arguments, outer layers first."""
    if isinstance(layers, keras.layers.Layer):
        if type(layers).__module__.startswith("keras_vitx."):
            arguments = config["config"]
            yield layers, arguments
            for name, inner in arguments.items():
                yield from _pairs(getattr(layers, name, None), inner)
    elif isinstance(layers, (list, tuple)) and isinstance(config, (list, tuple)):
        for layer, inner in zip(layers, config, strict=True):
            yield from _pairs(layer, inner)


# Each function below changes the serialized arguments of a layer, and the values.


def _merge_lora(model: keras.Model, values: Values) -> None:
    r"""Replace each kernel $W$ with an update by $W + \frac{\alpha}{r} A B$."""
    for layer in sublayers(model):
        if getattr(layer, "lora_enabled", False):
            name = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
            paths = {variable.name: variable.path for variable in layer.weights}
            values[paths[name]] = _array(getattr(layer, name))
            values.drop(paths[f"lora_{name}_a"])
            values.drop(paths[f"lora_{name}_b"])


def _without_lora(config: Any) -> Any:
    """Return a serialized model without the arguments of LoRA."""
    if isinstance(config, (list, tuple)):
        return [_without_lora(item) for item in config]
    if not isinstance(config, dict):
        return config
    # "adapted" lists, in `Layer.get_config`, the changes after construction.
    result = {name: _without_lora(value) for name, value in config.items() if name != "adapted"}
    if str(config.get("module")).startswith("keras."):
        for name in ("lora_rank", "lora_alpha"):
            result["config"].pop(name, None)
    return result


def _fold_norms(layer: keras.layers.Layer, arguments: dict[str, Any], values: Values) -> None:
    """Fold each normalization over heads into the mix or the convolution before it.

    The bias of a mix right before the softmax is dropped: it is constant over the keys.
    """
    if type(layer) not in ATTENTION:
        return
    for name in ("on_logits", "on_weights"):
        pairs: list[tuple[keras.layers.Layer, dict[str, Any]]] = []
        for operation, config in zip(getattr(layer, name), arguments[name], strict=True):
            is_norm = type(operation) is keras.layers.BatchNormalization
            is_norm = is_norm and operation.axis in (1, -3)
            if not (is_norm and pairs and _is_linear(pairs[-1][0])):
                pairs.append((operation, config))
                continue
            linear, linear_config = pairs[-1]
            kernel, bias = f"{linear.path}/kernel", f"{linear.path}/bias"
            old = values.read(bias) if bias in values else None
            values[kernel], values[bias] = map(_array, fold(operation, values.read(kernel), old))
            values.drop(operation.path)
            linear_config["config"]["use_bias"] = True
        arguments[name] = [config for _, config in pairs]
        if name == "on_logits" and pairs and type(pairs[-1][0]) is HeadMixing:
            last, config = pairs[-1]
            values.drop(f"{last.path}/bias")
            config["config"]["use_bias"] = False


def _is_linear(layer: keras.layers.Layer) -> bool:
    """Return whether a normalization per head folds into a layer over maps."""
    # A spatial convolution skips the entries of the class token.
    is_convolution = type(layer) is LocalMapConvolution and layer.constraint != "spatial"
    return type(layer) is HeadMixing or is_convolution


def _fold_scales(layer: keras.layers.Layer, arguments: dict[str, Any], values: Values) -> None:
    r"""Fold the scales of a block, or of the layers after a projection, into that projection.

    $\gamma \odot (x W + b) = x (W \gamma) + b \odot \gamma$. With a residual scale $s$,
    $f(\mathrm{norm}(s x)) / s$ is the same with $W / s$, $b / s$ and an epsilon of the norm
    divided by $s^2$.
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
        for scale, _ in pairs:
            if type(scale) is LayerScale:
                _multiply(values, layer, values.read(scale.gamma.path))
                values.drop(scale.gamma.path)
        arguments["on_output"] = [
            config for inner, config in pairs if type(inner) is not LayerScale
        ]


def _takes_scale(branch: keras.layers.Layer) -> bool:
    """Return whether a scale of the output of `branch` folds into its last projection.

    The layers after the projection must commute with a scale per channel.
    """
    return type(branch) in LAST and all(
        type(layer) is LayerScale
        or (type(layer) is ContextBroadcasting and layer.context in ("mean", "class"))
        for layer in branch.on_output
    )


def _multiply(values: Values, branch: keras.layers.Layer, scale: Any) -> None:
    """Multiply the last projection of `branch` by `scale`, per output channel."""
    for variable in getattr(branch, LAST[type(branch)]).weights:
        if variable.path in values:
            values[variable.path] = values.read(variable.path) * scale


def _fold_images(
    preprocessing: keras.layers.Layer,
    arguments: dict[str, Any],
    embedding: keras.layers.Layer,
    values: Values,
) -> None:
    r"""Fold the mean and the standard deviation of an `ImagePreprocessing` into an embedding.

    For pixels $x$ in 0..255, $W (x / 255 - \mu) / \sigma + b = W' x + b'$ with
    $W' = W / (255 \sigma)$ and $b' = b - \sum W \mu / \sigma$. A `ConvStem` pads the normalized
    image with zeros, pixels of $255 \mu$: the mean is still subtracted there.
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
    values[kernel] = values.read(kernel) / (255 * std[:, None])


def _assign(values: Values, model: keras.Model, result: keras.Model) -> None:
    """Assign the values to the variables of `result` at the same paths.

    Variables of custom layers and nested models, whose paths differ between instances, are matched
    by order.
    """
    paths = {}
    for old, new in zip(_foreign_layers(model), _foreign_layers(result), strict=True):
        variables = [variable for variable in old.weights if variable.path in values]
        if [(v.name, v.shape) for v in variables] == [(v.name, v.shape) for v in new.weights]:
            paths.update({b.path: a.path for a, b in zip(variables, new.weights, strict=True)})
    sources = [paths.get(variable.path, variable.path) for variable in result.weights]
    if sorted(sources) != sorted(values):
        raise ValueError(f"`model` has variables that can't be matched: {model.name!r}.")
    for variable, path in zip(result.weights, sources, strict=True):
        variable.assign(values.pop(path))


def _foreign_layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield the custom layers and models inside `layer`, without those inside them."""
    for child in children(layer):
        is_custom = type(child).__module__.split(".")[0] not in ("keras", "keras_vitx")
        if is_custom or isinstance(child, keras.Model):
            yield child
        else:
            yield from _foreign_layers(child)
