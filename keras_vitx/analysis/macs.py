"""The multiply-accumulates of a network: the FLOPs columns of the papers."""

from math import prod

import keras

from keras_vitx import layers
from keras_vitx.keras_internals import sublayers


def count_macs(model: keras.Model) -> int:
    r"""Return the multiply-accumulates of one image, the "FLOPs" of the papers.

    They are those of the matrix products and convolutions: of a Dense on $n$ tokens, $n$ times the
    size of its kernel; of maps $(h, q, k)$ from queries and keys of width $d$ per head, $h q k d$,
    and as many for the values; of a mix of $h$ maps to $h'$, $h h' q k$. Norms, softmaxes and sums
    are not counted.

    ```python
    kv.count_macs(kv.CaiT_S36()) / 1e9                             # 13.9, CaiT, Table 3
    kv.count_macs(kv.CaiT_S36(input_shape=(384, 384, 3))) / 1e9    # 48.0
    ```

    Args:
        model: A built model, or a layer. Its layers are those of this package or of
            `keras.layers`; other layers are not counted.
    """
    return sum(map(_macs, sublayers(model)))


def _macs(layer: keras.layers.Layer) -> int:
    """Return what a layer itself multiplies, without the layers inside it."""
    shape = (layer.get_build_config() or {}).get("input_shape")
    if isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
        _, rows, columns, _ = layer.compute_output_shape(shape)
        return rows * columns * prod(layer.kernel.shape)
    if isinstance(layer, keras.layers.Dense):
        return prod(shape[1:-1]) * prod(layer.kernel.shape)
    if isinstance(layer, (layers.HeadMixing, layers.LocalMapConvolution)):
        return prod(shape[2:]) * prod(layer.kernel.shape)
    if isinstance(layer, layers.Attention):
        reuses = isinstance(layer, layers.SharedAttention)
        takes_pair = isinstance(layer, layers.SharingAttention) and layer.reads_maps
        tokens = shape[0] if takes_pair else shape
        _, _, queries, keys = layer.maps_shape(tokens[1])
        return queries * keys * (layer.value_width + layer.width * (not reuses))
    return 0
