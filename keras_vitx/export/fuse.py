"""An equal model for inference, with the normalizations of attention maps folded."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.keras_internals import children, sublayers
from keras_vitx.layers import HeadMixing, LocalMapConvolution, ReAttention, ResidualRefinement
from keras_vitx.layers.base import build_all, classes_in, register, serialize
from keras_vitx.layers.maps import MapLayer, convolution_1x1
from keras_vitx.outputs import describe, is_chain

WITH_LORA = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Embedding,
    keras.layers.Conv2D,
)
"""Layers of Keras that may have updates of low rank."""

Arrays = dict[int, list[np.ndarray]]
"""The weights of layers that change, by their `id`, in the order of `weights`."""


def can_be_fused(model: keras.Model) -> bool:
    """Return whether a model is a `Chain` without quantized layers."""
    return is_chain(model) and not any(layer.quantization_mode for layer in sublayers(model))


def fuse(model: keras.Model) -> keras.Model:
    """Return an equal model for inference, with fewer operations.

    The outputs are the same, up to rounding. `model` is not modified. The result is a `Chain`, not
    compiled, which saves, loads and exports like any other.

    - BatchNormalization over attention maps is folded into the mix or the convolution of the maps
      before it.
    - LoRA updates are merged into the kernels.

    Custom layers, and layers inside them, keep their normalizations.

    Args:
        model: A `Chain`.

    Raises:
        ValueError: if `model` is not a `Chain`, or has quantized layers.
    """
    rule = "`model` must be a `Chain` (`keras_vitx.as_chain`) without quantized layers."
    if not can_be_fused(model):
        raise ValueError(f"{rule} Received: {describe(model)}.")
    arrays: Arrays = {}
    for layer in sublayers(model):
        if isinstance(layer, WITH_LORA) and layer.lora_enabled:
            arrays[id(layer)] = _merge_lora(layer)
    config = _without_lora(model.get_config())
    _fold(model.layers, config["layers"], arrays)
    # Under JAX, variables that share an array are lost when a step or prediction donates it.
    weights = list(map(ops.convert_to_numpy, _weights(model, arrays, set())))
    result = type(model).from_config(config, custom_objects=classes_in(model))
    result.set_weights(weights)
    return result


@register
class FoldedConvolution(LocalMapConvolution):
    """`LocalMapConvolution` at inference, with a bias per head: the normalization after it."""

    def build(self, input_shape):
        super().build(input_shape)
        self.bias = self.add_weight((input_shape[1],), "zeros", name="bias")

    def call(self, maps):
        bias = ops.cast(ops.reshape(self.bias, (-1, 1, 1)), self.compute_dtype)
        return super().call(maps) + bias


@register
class FoldedRefinement(MapLayer):
    r"""`ResidualRefinement` at inference, with its normalizations folded into its convolutions.

    $$A' = c \odot A + W_r\,\phi(w * \phi(W_e A + b_e) + b_w) + b_r, \qquad
    \phi = \mathrm{ReLU6},$$
    with a weight $c$ per head (`skip`).

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        expansion, kernel_size: As in `ResidualRefinement`.
    """

    def __init__(self, expansion: int = 3, kernel_size: int = 3, **kwargs):
        super().__init__(**kwargs)
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.depth_sep_conv = FoldedConvolution(
            kernel_size, dtype=self.dtype_policy, name="depth_sep_conv"
        )

    def build(self, input_shape):
        heads, dtype = input_shape[1], self.dtype_policy
        wide = self.expansion * heads
        self.conv_exp = convolution_1x1(heads, wide, True, dtype=dtype, name="conv_exp")
        self.conv_pro = convolution_1x1(wide, heads, True, dtype=dtype, name="conv_pro")
        build_all([self.conv_exp, self.depth_sep_conv, self.conv_pro], input_shape)
        self.skip = self.add_weight(name="skip", shape=(heads,), initializer="ones")

    def call(self, maps):
        y = ops.relu6(self.run(self.conv_exp, maps))
        y = ops.relu6(self.run(self.depth_sep_conv, y))
        return maps * ops.reshape(self.skip, (-1, 1, 1)) + self.run(self.conv_pro, y)


def _fold(layers: Any, config: Any, arrays: Arrays) -> None:
    """Fold norms in layers of the package: change their config, and note their new `arrays`."""
    if isinstance(layers, (list, tuple)) and isinstance(config, list):
        kept: list[tuple[keras.layers.Layer, dict[str, Any]]] = []
        for layer, inner in zip(layers, config, strict=True):
            if kept and _is_norm(layer) and _is_linear(kept[-1][0]):
                linear, linear_config = kept[-1]
                weights = arrays.get(id(linear)) or linear.weights
                arrays[id(linear)], arrays[id(layer)] = _fold_norm(weights, layer), []
                if type(linear) is LocalMapConvolution:
                    form = FoldedConvolution.from_config(linear.get_config())
                    linear_config.update(serialize(form))
                else:
                    linear_config["config"]["use_bias"] = True
            else:
                _fold(layer, inner, arrays)
                kept.append((layer, inner))
        config[:] = [inner for _, inner in kept]
    elif type(layers) is ReAttention:
        config["config"].update(map_scale=1.0, normalize=False)
        weights = _fold_norm(layers.reatten_matrix.weights, layers.var_norm)
        arrays[id(layers)] = [array * layers.map_scale for array in weights]
    elif type(layers) is ResidualRefinement:
        form = FoldedRefinement(
            layers.expansion, layers.kernel_size, name=layers.name, dtype=layers.dtype_policy
        )
        config.update(serialize(form))
        scale, shift = (layers.map_scale * array for array in _affine(layers.adapt_bn))
        kernel, bias = _fold_norm(layers.conv_pro.weights, layers.bn3)
        depthwise = _fold_norm(layers.depth_sep_conv.weights, layers.bn2)
        expand = _fold_norm(layers.conv_exp.weights, layers.bn1)
        reduce = [kernel * scale[:, None], bias * scale + shift]
        arrays[id(layers)] = [scale, *depthwise, *expand, *reduce]
    elif keras.saving.get_registered_name(type(layers)).startswith("keras_vitx>"):
        for name, inner in config["config"].items():
            _fold(getattr(layers, name, None), inner, arrays)


def _is_norm(layer: keras.layers.Layer) -> bool:
    return type(layer) is keras.layers.BatchNormalization and layer.axis in (1, -3)


def _is_linear(layer: keras.layers.Layer) -> bool:
    # A spatial convolution skips the entries of the class token.
    is_convolution = type(layer) is LocalMapConvolution and layer.constraint != "spatial"
    return type(layer) is HeadMixing or is_convolution


def _fold_norm(
    weights: list[Any], norm: keras.layers.BatchNormalization | None
) -> list[np.ndarray]:
    """Return kernel and bias of a linear layer, with the normalization after it, if any."""
    kernel, *bias = map(_array, weights)
    scale, shift = _affine(norm)
    return [
        kernel * np.reshape(scale, (-1, *[1] * (kernel.ndim - 1))),
        sum(bias) * scale + shift,
    ]


def _affine(norm: keras.layers.BatchNormalization | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and the shift of a normalization at inference; of None, 1 and 0."""
    if norm is None:
        return np.ones(1), np.zeros(1)
    scale = 1 / np.sqrt(_array(norm.moving_variance) + norm.epsilon)
    if norm.gamma is not None:
        scale = scale * _array(norm.gamma)
    shift = -_array(norm.moving_mean) * scale
    return scale, shift if norm.beta is None else shift + _array(norm.beta)


def _merge_lora(layer: keras.layers.Layer) -> list[np.ndarray]:
    r"""Return the weights of a layer with LoRA, its kernel as $W + \frac{\alpha}{r} A B$."""
    own = {v.name: v for v in layer.weights if not v.name.startswith("lora_")}
    if isinstance(layer, keras.layers.Embedding):
        own["embeddings"] = layer.embeddings
    else:
        own["kernel"] = layer.kernel
    return [_array(value) for value in own.values()]


def _without_lora(config: Any, is_keras: bool = False) -> Any:
    """Return a serialized model without the arguments of LoRA, which layers of Keras have."""
    if isinstance(config, (list, tuple)):
        return [_without_lora(item) for item in config]
    if not isinstance(config, dict):
        return config
    inner = str(config.get("module")).startswith("keras.")
    return {
        name: _without_lora(value, inner if "module" in config else is_keras)
        for name, value in config.items()
        if not (is_keras and name in ("lora_rank", "lora_alpha"))
    }


def _weights(layer: keras.layers.Layer, arrays: Arrays, seen: set[int]) -> list[Any]:
    """Return what `layer.weights` is in the fused model: its own variables, then its children's."""
    if id(layer) in arrays:
        return arrays[id(layer)]
    inner = children(layer)
    nested = {id(variable) for child in inner for variable in child.weights}
    own = [variable for variable in layer.weights if id(variable) not in nested | seen]
    seen.update(map(id, own))
    return own + [array for child in inner for array in _weights(child, arrays, seen)]


def _array(value: object) -> np.ndarray:
    return ops.convert_to_numpy(value).astype("float64")
