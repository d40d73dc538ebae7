"""Kernels of JAX, most of them for XLA on a CPU."""

import functools

import jax
import keras
import numpy as np
from jax import ad_checkpoint
from jax import numpy as jnp
from jax.extend import core

from keras_vitx.layers import ops
from keras_vitx.layers.kernels.tensorflow import mix_heads as mix_columns

# The plain forms: `ops` replaces its functions only after this module is imported.
_plain_call, _plain_attention = ops.call, ops.fused_attention
_plain_convolve_maps, _plain_depthwise_conv = ops.convolve_maps, ops.depthwise_conv
_plain_gelu = ops.gelu

SAVED = "saved"  # The name by which `remat` knows what else is worth saving.


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
        y = keras.ops.matmul(keras.ops.cast(_saved_softmax(logits), value.dtype), value)
    else:
        # Subtracting a constant from a row of logits leaves its softmax unchanged.
        largest = keras.ops.stop_gradient(keras.ops.max(logits, axis=-1, keepdims=True))
        weights = keras.ops.exp(logits - largest)
        sums = keras.ops.sum(weights, axis=-1, keepdims=True)
        y = keras.ops.matmul(keras.ops.cast(weights, value.dtype), value)
        # The result has fewer entries than the maps.
        y = keras.ops.cast(y / sums, value.dtype)
    return checkpoint_name(keras.ops.transpose(y, (0, 2, 1, 3)))


def use_scan(scan):
    """Scan on a CPU, where a step takes half the time; accelerators would move more bytes."""
    return on_cpu() if scan is None else scan


def program(function, *inputs):
    """Return the traced program of `function`, with its constants, to compare. All devices.

    `inputs` have shapes and dtypes. A gradient that an operation defines is no part of its jaxpr:
    where there is one, the gradient is traced, too.
    """
    inputs = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(tuple(one.shape), one.dtype),
        inputs,
        is_leaf=lambda one: hasattr(one, "shape"),
    )
    traced = jax.make_jaxpr(function)(*inputs)
    if "custom_" in str(traced.jaxpr):
        traced = jax.make_jaxpr(functools.partial(value_and_gradient, function))(*inputs)
    return comparable(traced)


def value_and_gradient(function, *inputs):
    """Return the outputs of `function`, and the gradient of the floating ones by such inputs."""
    leaves, structure = jax.tree.flatten(inputs)
    pairs = [(leaf, jnp.issubdtype(leaf.dtype, jnp.floating)) for leaf in leaves]

    def of_floats(floats):
        floats = iter(floats)
        values = [next(floats) if is_one else leaf for leaf, is_one in pairs]
        outputs = jax.tree.leaves(function(*jax.tree.unflatten(structure, values)))
        return [y for y in outputs if jnp.issubdtype(y.dtype, jnp.floating)], outputs

    floats = [leaf for leaf, is_one in pairs if is_one]
    y, pull, outputs = jax.vjp(of_floats, floats, has_aux=True)
    return outputs, pull([jnp.ones_like(one) for one in y])


def comparable(value, names=None):
    """Return a traced program, or a part of it, as a tuple that equals an equal program's.

    The tuple keeps the functions in it alive, so that no other one gets their address. Of an
    operation with a gradient of its own, the functions are left out: `program` traces it. The
    lowered text is the same for two callbacks, and takes 2.6 times as long (CaiT_XXS24).
    """
    if isinstance(value, (core.ClosedJaxpr, core.Jaxpr)):
        # From JAX 0.12 on, both are one class.
        constants = comparable(list(getattr(value, "consts", ())))
        value, names, steps = getattr(value, "jaxpr", value), {}, []
        inputs = comparable([*value.constvars, *value.invars], names)
        for step in value.eqns:
            params = step.params
            if step.primitive.name.startswith("custom_"):
                kinds = (core.ClosedJaxpr, core.Jaxpr, tuple, int)
                params = {name: one for name, one in params.items() if isinstance(one, kinds)}
            variables = comparable([step.invars, step.outvars], names)
            steps.append((step.primitive, variables, comparable(params)))
        return constants, inputs, tuple(steps), comparable(value.outvars, names)
    if isinstance(value, core.Literal):
        return comparable(value.val), value.aval
    if isinstance(value, core.Var):
        return names.setdefault(value, len(names)), value.aval
    if isinstance(value, dict):
        return tuple((name, comparable(one, names)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(comparable(one, names) for one in value)
    if isinstance(value, jax.core.Tracer):
        return id(value)
    if isinstance(value, float) or hasattr(value, "__array__"):
        is_plain = not jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended)
        content = np.asarray(value).tobytes() if is_plain else object()
        return np.shape(value), jnp.result_type(value), content
    return value


def remat(function, mode, in_loop=False):
    """Recompute elementwise operations alone, of `"products"`. All devices."""
    policies = jax.checkpoint_policies
    products = policies.dots_with_no_batch_dims_saveable
    policy = policies.save_from_both_policies(products, policies.save_only_these_names(SAVED))
    # Outside a loop, XLA would find that what is recomputed was computed before.
    return jax.checkpoint(
        function, policy=policy if mode == "products" else None, prevent_cse=not in_loop
    )


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


@jax.custom_jvp
def _saved_softmax(logits):
    return jax.nn.softmax(logits)


@_saved_softmax.defjvp
def _softmax_jvp(primals, tangents):
    # JAX's own computes the derivative from a softmax that cannot be marked.
    y, (change,) = checkpoint_name(_saved_softmax(*primals)), tangents
    return y, y * (change - keras.ops.sum(y * change, axis=-1, keepdims=True))
