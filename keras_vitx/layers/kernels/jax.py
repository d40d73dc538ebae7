"""Kernels of JAX, most of them for XLA on a CPU."""

import enum
import functools

import jax
import keras
import numpy as np
from jax import ad_checkpoint
from jax import numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from keras_vitx.layers import ops
from keras_vitx.layers.kernels.tensorflow import mix_heads as mix_columns

# The plain forms: `ops` replaces its functions only after this module is imported.
_plain_call, _plain_attention = ops.call, ops.fused_attention
_plain_convolve_maps, _plain_depthwise_conv = ops.convolve_maps, ops.depthwise_conv
_plain_gelu = ops.gelu

SAVED = "saved"  # The name by which `remat` knows what else is worth saving.

# What `"products"` saves; one object, by which JAX knows equal programs.
PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(SAVED),
)


def on_cpu():
    """Return whether JAX computes on a CPU."""
    return jax.default_backend() == "cpu"


def call(layer, x, training=None, dtype=None, **arguments):
    """Let a `Dense` multiply rows of tokens, and a convolution of patches be a product. CPU.

    XLA takes 1.5 times as long for the gradient of a Dense's kernel if the inputs have three axes,
    and three times as long for the stem's projection of patches as a convolution.
    """
    if on_cpu() and type(layer) is keras.layers.Conv2D and is_patchwise(layer, x):
        return project_patches(layer, x)
    if type(layer) is keras.layers.LayerNormalization and on_cpu():
        return layer_norm(layer, x)
    is_rows = training and type(layer) is keras.layers.Dense and len(x.shape) == 3 and on_cpu()
    if not is_rows:
        return _plain_call(layer, x, training, dtype, **arguments)
    rows = keras.ops.reshape(x, (-1, x.shape[-1]))
    y = _plain_call(layer, rows, training, dtype, **arguments)
    return keras.ops.reshape(y, (*x.shape[:-1], y.shape[-1]))


def is_patchwise(layer, x):
    """Return whether a convolution is a projection of adjacent patches."""
    is_plain = layer.groups == 1 and layer.activation is keras.activations.linear
    sides = zip(x.shape[1:3], layer.kernel_size, layer.strides, strict=True)
    fits = all(side % kernel == 0 and kernel == stride for side, kernel, stride in sides)
    return is_plain and fits and layer.data_format == "channels_last"


def project_patches(layer, x):
    """Apply a convolution of adjacent patches as a product."""
    (height, width), (_, rows, columns, channels) = layer.kernel_size, x.shape
    kernel, x = (jnp.asarray(each, layer.compute_dtype) for each in (layer.kernel, x))
    x = jnp.reshape(x, (-1, rows // height, height, columns // width, width, channels))
    y = jnp.einsum("brhcwi,hwio->brco", x, kernel)
    return y if layer.bias is None else y + jnp.asarray(layer.bias, layer.compute_dtype)


def layer_norm(layer, x):
    """Take the derivative from the result, and save means and deviations. CPU."""
    if layer.axis not in ([-1], [x.ndim - 1]) or layer.rms_scaling:
        return _plain_call(layer, x)
    y = _normalize(ops.at_least_float32(x), layer.epsilon)
    y = y if layer.gamma is None else y * jnp.asarray(layer.gamma, y.dtype)
    y = y if layer.beta is None else y + jnp.asarray(layer.beta, y.dtype)
    return keras.ops.cast(y, x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _normalize(x, epsilon):
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + epsilon)


@_normalize.defjvp
def _normalize_jvp(epsilon, primals, tangents):
    (x,), (change,) = primals, tangents
    centered = x - checkpoint_name(jnp.mean(x, -1, keepdims=True))
    scale = jax.lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + epsilon)
    scale = checkpoint_name(scale)
    y = centered * scale
    mean, slope = (jnp.mean(values, -1, keepdims=True) for values in (change, y * change))
    return y, scale * (change - mean - y * slope)


def softmax(logits, dtype=None):
    """Take the derivative from the result, unlike JAX's own. All devices."""
    y = _softmax(ops.at_least_float32(logits), False)
    return keras.ops.cast(y, dtype or logits.dtype)


def gelu(x):
    """Compute GELU by `erf`, several times shorter than Keras's form by `erfc`. All devices."""
    if all(isinstance(size, int) for size in x.shape):
        # Half precision, too, is computed in float32, where 1 + erf loses less than it rounds.
        return keras.ops.cast(_plain_gelu(ops.at_least_float32(x)), x.dtype)
    # JAX's own SavedModels, whose batch size is symbolic, cannot hold `erf`.
    return keras.activations.gelu(x, approximate=False)


def convolve_maps(maps, kernel):
    """Add shifted maps in one loop, several times faster than a depthwise convolution. CPU."""
    form = ops.add_shifted_maps if on_cpu() else _plain_convolve_maps
    return form(maps, kernel)


def mix_heads(kernel, maps, bias=None):
    """Multiply whole maps on a TPU, where columns are copies of other tiles; else columns.

    More maps than before (Refiner) are convolved next, which wants those other tiles.
    """
    if jax.default_backend() != "tpu" or kernel.shape[0] != kernel.shape[1]:
        return mix_columns(kernel, maps, bias)
    kernel = keras.ops.broadcast_to(kernel, (maps.shape[0], *kernel.shape))
    # With the batch in the product, `remat` does not save it.
    mixed = keras.ops.einsum("bij,bjqk->biqk", kernel, maps)
    return mixed if bias is None else mixed + keras.ops.reshape(bias, (-1, 1, 1))


def depthwise_conv(x, kernel, strides):
    """Repeat the channels; else, for the gradient, each device gathers all images. All devices."""
    x, kernel = jnp.repeat(x, kernel.shape[-1], -1), jnp.reshape(kernel, (*kernel.shape[:2], -1, 1))
    return _plain_depthwise_conv(x, kernel, strides)


def fused_attention(query, key, value, mask=None, training=False):
    """Multiply with heads first, several times faster than JAX's own, and save the maps. CPU."""
    if not on_cpu():
        return checkpoint_name(_attention_of_accelerators(query, key, value, mask, training))
    if keras.backend.standardize_dtype(query.dtype) == "bfloat16":
        return _plain_attention(query, key, value, mask, training)
    query = query * query.shape[-1] ** -0.5
    query, key, value = (
        checkpoint_name(keras.ops.transpose(each, (0, 2, 1, 3))) for each in (query, key, value)
    )
    logits = keras.ops.matmul(query, keras.ops.transpose(key, (0, 1, 3, 2)))
    logits = ops.at_least_float32(ops.mask_logits(logits, mask))
    if training:
        y = keras.ops.matmul(keras.ops.cast(_softmax(logits, True), value.dtype), value)
    else:
        # Subtracting a constant from a row of logits leaves its softmax unchanged.
        largest = keras.ops.stop_gradient(keras.ops.max(logits, axis=-1, keepdims=True))
        weights = keras.ops.exp(logits - largest)
        sums = keras.ops.sum(weights, axis=-1, keepdims=True)
        y = keras.ops.matmul(keras.ops.cast(weights, value.dtype), value)
        # The result has fewer entries than the maps.
        y = keras.ops.cast(y / sums, value.dtype)
    return checkpoint_name(keras.ops.transpose(y, (0, 2, 1, 3)))


def draw_masks(rates, generators, count):
    """Draw at once the numbers of all generators, each of which would be a loop. All devices."""
    if not generators:
        return []
    keys = [generator.next() for generator in generators]
    noise = jax.vmap(lambda key: jax.random.uniform(key, (count,)))(jnp.stack(keys))
    keep = 1 - jnp.asarray(rates)[:, None]
    return list((noise < keep).astype("float32") / keep)


def least_remat(remat, x):
    """Save products only, in a compiled step: `remat` says why. CPU."""
    return remat or (on_cpu() and isinstance(x, jax.core.Tracer) and "products")


def remat(function, mode, is_block=True):
    """Recompute elementwise operations alone, of `"products"`. All devices.

    On a CPU, a block is a call that XLA does not inline. Else its fusion evaluates the residual
    chain of all later blocks again for every weight (CaiT_XXS24: 5,974 ms per step, now 1,100). In
    a call, convolutions, as those of stems, are many times slower.
    """
    policy = PRODUCTS if mode == "products" else None
    if is_block and on_cpu():
        return functools.partial(call_alone, function, policy)
    return jax.checkpoint(function, policy=policy)


def call_alone(function, policy, *inputs):
    """Call a recomputed function as a call that XLA does not inline, unlike calls in it."""
    traced, outputs = jax.make_jaxpr(function, return_shape=True)(*inputs)
    with set_xla_metadata(inlineable="false"):
        values = recomputed(Program(traced), policy)(*inputs)
    return jax.tree.unflatten(jax.tree.structure(outputs), values)


class Program:
    """A traced function, equal to one that JAX prints in the same way if that says all of it."""

    def __init__(self, traced):
        self.traced = traced
        self.text = str(traced) if is_printed(traced) else object()

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == other.text


def is_printed(value):
    """Return whether its text says all of a traced function: it has no arrays, code or devices."""
    if isinstance(value, ClosedJaxpr):
        return not value.consts and is_printed(value.jaxpr)
    if isinstance(value, Jaxpr):
        return all(is_printed(list(equation.params.values())) for equation in value.eqns)
    if isinstance(value, (tuple, list)):
        return all(map(is_printed, value))
    plain = int, float, str, enum.Enum, np.dtype, np.generic, type(None)
    nothing = "UnspecifiedValue", "Mesh(axis_sizes=(), axis_names=())"
    source = getattr(getattr(value, "debug_info", None), "func_src_info", None)
    return isinstance(value, plain) or repr(value) in nothing or __file__ in str(source)


@functools.lru_cache(64)
def recomputed(program, policy):
    """Return a program that is recomputed for its derivative; JAX traces and derives it once."""

    # In a call, XLA does not find that what is recomputed was computed before.
    function = jax.checkpoint(jaxpr_as_fun(program.traced), policy=policy, prevent_cse=False)
    return jax.jit(set_xla_metadata(inlineable="true")(function))


def checkpoint_name(x):
    """Mark `x` for `remat`. All devices."""
    return ad_checkpoint.checkpoint_name(x, SAVED)


def _attention_of_accelerators(query, key, value, mask, training):
    """Return attention by cuDNN where it runs and moves fewer bytes, else by XLA.

    On a TPU without a mask, `keras.ops.dot_product_attention` would be causal and unscaled; on a
    GPU, it would raise in training for an odd number of tokens.
    """
    # The maps, queries x keys, have more entries than the queries and the keys.
    has_large_maps = min(query.shape[1], key.shape[1]) > query.shape[3]
    is_on = keras.config.is_flash_attention_enabled() is not False
    dtype = keras.backend.standardize_dtype(query.dtype)
    if mask is None and has_large_maps and is_on and jax.default_backend() == "gpu":
        shapes = query.shape[1:], key.shape[1:]
        if runs_cudnn(*shapes, dtype, bool(training)):
            return by_cudnn(query, key, value)
    # XLA does not compile JAX's products of float16 for one query, as CaiT's class token, on a GPU.
    inputs = [x.astype("float32") if dtype == "float16" else x for x in (query, key, value)]
    return jax.nn.dot_product_attention(*inputs, mask=mask, implementation="xla").astype(dtype)


def by_cudnn(query, key, value):
    """Return attention by cuDNN, which refuses odd lengths in training: they are padded."""
    batch, queries, _, _ = query.shape
    keys, lengths = key.shape[1], {}
    if queries % 2 or keys % 2:
        counts = (jnp.full((batch,), count, "int32") for count in (queries, keys))
        lengths = dict(zip(("query_seq_lengths", "key_value_seq_lengths"), counts, strict=True))
    even = (jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (query, key, value))
    return jax.nn.dot_product_attention(*even, implementation="cudnn", **lengths)[:, :queries]


@functools.cache
def runs_cudnn(query, key, dtype, training):
    """Return whether cuDNN takes these shapes, without the batch; JAX checks while it traces."""
    if dtype == "float32":
        return False

    def total(*inputs):
        return by_cudnn(*inputs).astype("float32").sum()

    function = jax.grad(total, argnums=(0, 1, 2)) if training else total
    try:
        jax.eval_shape(function, *(jax.ShapeDtypeStruct((2, *s), dtype) for s in (query, key, key)))
    except Exception:  # Of many kinds: no library, an old one, a device, a shape.
        return False
    return True


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(logits, is_saved):
    return jax.nn.softmax(logits)


@_softmax.defjvp
def _softmax_jvp(is_saved, primals, tangents):
    # JAX's own computes the derivative from a softmax that cannot be marked.
    y, (change,) = _softmax(*primals, is_saved), tangents
    y = checkpoint_name(y) if is_saved else y
    return y, y * (change - keras.ops.sum(y * change, axis=-1, keepdims=True))
