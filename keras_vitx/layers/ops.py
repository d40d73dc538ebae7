"""The operations of the layers, each in its plain form; other names are those of `keras.ops`.

What a backend does faster, or must do otherwise, is in `layers/kernels/` under the same name.
`KERNELS`, at the end, makes the choice once, at import; the layers know none of it.
"""

import contextlib
import importlib

import keras

COMPILES_BLOCKS = False  # Whether there is a `compiled_call`.


def __getattr__(name):
    return getattr(keras.ops, name)


def call(layer, x, training=None, dtype=None, **arguments):
    """Call `layer` inside one that computes in `dtype`, with `training` if it takes that."""
    if "training" in layer.call_signature_parameters:
        arguments["training"] = training
    return layer(x, **arguments)


def without_autocast(x):
    """Return a context in which operations on `x` keep its dtype, also under `torch.autocast`."""
    return contextlib.nullcontext()


def logits(query, key):
    r"""Return $Q K^\top / \sqrt d$ of `(batch, tokens, heads, size)`, with the heads on axis 1."""
    query = keras.ops.transpose(query * query.shape[-1] ** -0.5, (0, 2, 1, 3))
    return keras.ops.matmul(query, keras.ops.transpose(key, (0, 2, 3, 1)))


def at_least_float32(x):
    """Return half precision as float32; float32 and float64 as they are."""
    is_half = keras.backend.standardize_dtype(x.dtype) in ("float16", "bfloat16")
    return keras.ops.cast(x, "float32") if is_half else x


def mean(x, axis=None, keepdims=False):
    """Return the mean; outside TensorFlow, Keras takes that of float64 in float32."""
    if axis is not None and keras.backend.standardize_dtype(x.dtype) == "float64":
        return keras.ops.sum(x, axis, keepdims=keepdims) / x.shape[axis]
    return keras.ops.mean(x, axis, keepdims=keepdims)


def softmax(logits, dtype=None):
    """Return the softmax over the last axis, of half precision in float32; in `dtype` if given."""
    y = keras.ops.softmax(at_least_float32(logits))
    return keras.ops.cast(y, dtype or logits.dtype)


def mask_logits(logits, mask):
    """Return logits that are very low, but finite, where `mask` is false; None masks nothing."""
    if mask is None:
        return logits
    lowest = -6e4 if keras.backend.standardize_dtype(logits.dtype) == "float16" else -1e30
    return keras.ops.where(mask, logits, keras.ops.full_like(logits, lowest))


def zero_masked(maps, mask):
    """Return maps with zeros where `mask` is false; without a mask (None), as they are."""
    return maps if mask is None else keras.ops.where(mask, maps, keras.ops.zeros_like(maps))


def attention(query, key, value, mask=None, training=False):
    r"""Return $\mathrm{softmax}(Q K^\top / \sqrt d)\,V$ per head, without the maps.

    Inputs and output are `(batch, tokens, heads, size)`. The mask,
    `(batch or 1, 1, queries or 1, keys)`, is True where a query attends a key; a query without a
    key gives 0.
    """
    if mask is None:
        return fused_attention(query, key, value, training=training)
    # The kernels differ, and some give NaN, where a query has no key: let it see all.
    has_keys = keras.ops.any(mask, axis=-1, keepdims=True)
    mask = keras.ops.logical_or(mask, keras.ops.logical_not(has_keys))
    y = fused_attention(query, key, value, mask, training)
    return zero_masked(y, keras.ops.transpose(has_keys, (0, 2, 1, 3)))


def fused_attention(query, key, value, mask=None, training=False):
    """Return `attention` where every query has a key."""
    return keras.ops.dot_product_attention(query, key, value, mask=mask)


def by_images(function, value, *inputs):
    """Return `function(value, *inputs)`, in inference, perhaps for some images at a time.

    The inputs have a batch axis, of length 1 where they are the same for all images, or are None.
    The maps inside `function` are those of `value`, `(batch, keys, heads, size)`.
    """
    return function(value, *inputs)


def mix_heads(kernel, maps, bias=None):
    r"""Return $\sum_j M_{ij} A_j + b_i$.

    `kernel`, $M$, is `(output heads, heads)`; `maps`, $A$, `(batch, heads, queries, keys)`; `bias`,
    $b$, `(output heads,)`.
    """
    mixed = keras.ops.einsum("ij,bjqk->biqk", kernel, maps)
    return mixed if bias is None else mixed + keras.ops.reshape(bias, (-1, 1, 1))


def convolve_maps(maps, kernel):
    """Convolve each head's map with its kernel, `(heads, 1, height, width)`, and zero padding."""
    kernel = keras.ops.transpose(kernel, (2, 3, 0, 1))
    return keras.ops.depthwise_conv(maps, kernel, padding="same", data_format="channels_first")


def add_shifted_maps(maps, kernel):
    """Return `convolve_maps` as a sum over the entries of the kernels."""
    _, _, queries, keys = maps.shape
    heads, _, height, width = kernel.shape
    up, left = height // 2, width // 2
    padded = pad(maps, ((0, 0), (0, 0), (up, up), (left, left)))
    return sum(
        padded[:, :, i : i + queries, j : j + keys]
        * keras.ops.reshape(kernel[:, 0, i, j], (heads, 1, 1))
        for i in range(height)
        for j in range(width)
    )


def pad(x, widths):
    """Pad with zeros, by their numbers before and after, per axis."""
    return keras.ops.pad(x, widths)


def depthwise_conv(x, kernel, strides):
    """Convolve each channel, unpadded; `kernel` is `(rows, columns, channels, multiplier)`."""
    return keras.ops.depthwise_conv(x, kernel, strides, data_format="channels_last")


def gelu(x):
    r"""Return $x\,(1 + \mathrm{erf}(x / \sqrt 2)) / 2$, the exact GELU."""
    if keras.backend.standardize_dtype(x.dtype) != "float32":
        # 1 + erf would lose small values.
        return keras.activations.gelu(x, approximate=False)
    return 0.5 * x * (1 + keras.ops.erf(x * 0.5**0.5))


def rotate(x, cos, sin, halves):
    """Rotate pairs, a channel of each half or neighbors; return all first, then all second."""
    a, b = keras.ops.split(x, 2, axis=-1) if halves else (x[..., ::2], x[..., 1::2])
    return keras.ops.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def draw_masks(rates, generators, count):
    """Return masks of stochastic depth for `count` samples; None, if each layer draws its own."""
    return [None] * len(rates)


def drop_path_mask(x, keep, generator, seed):
    """Return 1 / `keep` with probability `keep`, else 0, for each sample of `x`, `(batch, ...)`."""
    shape = (keras.ops.shape(x)[0], *[1] * (len(x.shape) - 1))
    kept = keras.random.uniform(shape, dtype="float32", seed=generator) < keep
    return checkpoint_name(keras.ops.cast(keras.ops.cast(kept, "float32") / keep, x.dtype))


def scalars_on_device():
    """Return a context in which Keras copies no Python numbers to the device."""
    return contextlib.nullcontext()


def without_modes():
    """Return a context without `scalars_on_device`, which costs a call for each operation."""
    return contextlib.nullcontext()


def checkpoint_name(x):
    """Return `x`, which `remat` of `"products"` saves."""
    return x


def least_remat(remat, x):
    """Return what a training pass on `x` recomputes; `remat` is as in `Chain`."""
    return remat


def remat(function, mode, is_block=True):
    """Return `function`, of which the backward pass recomputes what `mode` does not save.

    True saves the inputs, and `"products"`, under JAX, also products with weights and what
    `checkpoint_name` marks. `is_block` tells that it keeps the shape of its input.
    """
    return keras.remat(function)


KERNELS = {
    "tensorflow": ("mix_heads",),
    "torch": (
        *("shape", "reshape", "transpose", "split", "matmul", "cast", "call", "logits", "softmax"),
        *("fused_attention", "by_images", "mix_heads", "convolve_maps", "pad", "gelu"),
        *("drop_path_mask", "scalars_on_device", "without_modes", "rotate", "compiled_call"),
        *("COMPILES_BLOCKS", "without_autocast"),
    ),
    "jax": (
        *("call", "fused_attention", "mix_heads", "convolve_maps", "depthwise_conv", "gelu"),
        *("softmax", "checkpoint_name", "least_remat", "remat", "draw_masks"),
    ),
}

_backend = keras.backend.backend()
if _backend in KERNELS:
    _kernels = importlib.import_module(f"keras_vitx.layers.kernels.{_backend}")
    globals().update({name: getattr(_kernels, name) for name in KERNELS[_backend]})
