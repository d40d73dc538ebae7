"""BatchNormalization and biases over attention maps, folded into the layers before them."""

from typing import Any

import keras

from keras_vitx.export.fusing.scales import ATTENTION
from keras_vitx.export.fusing.values import Values, array
from keras_vitx.layers import HeadMixing, LocalMapConvolution
from keras_vitx.layers.maps import fold


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
