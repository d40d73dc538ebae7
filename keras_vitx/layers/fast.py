"""All code that depends on the backend or the device.

Each function is equivalent to a plain form in `keras.ops`, to which it falls back on other
backends and devices. A path that was measured on a CPU runs on CPUs only. Other modules of
`layers` and `models` never query the backend or the device.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import has_replaced_moments, kernel_of, remat_mode
from keras_vitx.layers.masking import hidden, masked

BACKEND = keras.backend.backend()
if BACKEND == "torch":
    import torch
else:
    torch = None
if BACKEND == "jax":
    import jax
    from jax import ad_checkpoint
else:
    jax = None

ONEDNN = None
"""oneDNN's product with a bias and an activation, which PyTorch has for the code it compiles."""
if torch is not None and torch.backends.mkldnn.is_available():
    ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)

LARGE = 1 << 16
"""Least number of entries in the input of a product that oneDNN computes: each call of it costs
some 25 microseconds more, by which ViT_Mini on one image was a sixth slower."""

PIECE = 12 << 20
"""Bytes of maps per piece in `in_pieces`."""

ROWS = 1 << 20
"""Bytes per piece in `_some_rows`."""

TERMS = 96
"""Least number of terms per output entry of the matrix products that `keep_products` keeps.

It is more than the width of a head."""

SAVED = "saved"
"""The name by which `keep_products` knows what else is worth saving."""

# For |x| <= ERF_REACH, erf(x / sqrt 2) / 2 is x times the ratio of these polynomials in x², with
# an error of 6e-8 (a weighted least-squares fit). Beyond, it is 1/2.
ERF_REACH = 5.2
ERF_ABOVE = (0.398941917, 0.0495935757, 0.00551873918, 3.14264557e-4, 5.84065245e-6)
ERF_BELOW = (1.0, 0.290973425, 0.0373398957, 0.00270375366, 1.12741292e-4, 5.01902136e-7)


def on_cpu(x: Any) -> bool:
    """Return whether PyTorch or JAX computes `x` on a CPU."""
    if torch is not None:
        return x.device.type == "cpu"
    return jax is not None and jax.default_backend() == "cpu"


def gains_from_scan() -> bool:
    """Return whether a scan over equal blocks trains faster than unrolled blocks (JAX)."""
    return jax is not None


def is_compiled_by_jax(x: Any) -> bool:
    """Return whether `x` is a tracer, in a function that JAX is compiling."""
    return jax is not None and isinstance(x, jax.core.Tracer)


def has_symbolic_sizes() -> bool:
    """Return whether unknown sizes are tensors that operations can use (TensorFlow)."""
    return BACKEND == "tensorflow"


def is_traced(x: Any) -> bool:
    """Return whether `x` is computed in code that PyTorch traces, compiles or exports."""
    return torch is not None and (
        # Symbolic tensors have other types.
        type(x) is not torch.Tensor or torch.compiler.is_compiling() or torch.jit.is_tracing()
    )


def is_eager(x: Any) -> bool:
    """Return whether `x` is a tensor of PyTorch that is being computed now, not traced."""
    return torch is not None and not is_traced(x)


def has_dtype(x: Any, dtype: Any) -> bool:
    """Return whether `x`, a tensor, has the precision `dtype`, a name or the backend's own."""
    if torch is not None:
        return x.dtype is (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    return keras.backend.standardize_dtype(x.dtype) == keras.backend.standardize_dtype(dtype)


HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def has_hooks(*layers: keras.layers.Layer) -> bool:
    """Return whether PyTorch hooks are registered for any of `layers`, or globally.

    Hooks run only when the layer itself is called.
    """
    if torch is None:
        return False
    modules = vars(torch.nn.modules.module)
    for name in HOOKS:
        if modules.get(f"_global{name}"):
            return True
        for layer in layers:
            if vars(layer).get(name):
                return True
    return False


def runs_straight(layer: keras.layers.Layer, x: Any, dtype: str) -> bool:
    """Return whether to call `layer.call` directly, skipping `__call__`.

    `__call__` checks and casts inputs that the parent has just checked and cast. Under
    PyTorch, which runs eagerly, that takes longer than a norm in a small network. A layer
    is called as usual if it is unbuilt, quantized, not from this package or Keras, has
    hooks, or needs `__call__` for rematerialization or activity regularization.

    Args:
        layer: A child layer.
        x: The input of the child, a tensor or a tuple of tensors.
        dtype: The compute dtype of the parent.
    """
    return (
        torch is not None
        and _is_plain(layer)
        and layer.compute_dtype == dtype
        and all(
            isinstance(tensor, torch.Tensor) and has_dtype(tensor, dtype)
            for tensor in (x if isinstance(x, tuple) else (x,))
        )
    )


def _is_plain(layer):
    return (
        layer.built
        and type(layer).__module__.startswith(("keras.", "keras_vitx."))
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        and remat_mode(layer) is None
        and not has_hooks(layer)
    )


def linear(dense: keras.layers.Dense, x: Any, training: Any = False) -> Any:
    """Apply a `Dense` without activation.

    Under PyTorch, product and bias are one operation; `keras.layers.Dense` adds the bias in a
    second pass. In training under JAX, in float32 on a CPU, the gradients are products of
    matrices, in the faster of two orders; `jax.jvp` is not possible there.

    Args:
        dense: A built layer, with or without LoRA. A layer that is quantized or has hooks is
            called as usual.
        x: `(..., features)`.
        training: Whether a backward pass follows.

    Returns:
        `(..., units)`.
    """
    if _is_one_operation(dense, x):
        return _product(dense, x)
    if not (training and _multiplies_rows(dense, x)):
        return dense(x)
    with keras.name_scope(dense.name):
        y = _multiply(x, keras.ops.convert_to_tensor(kernel_of(dense)))
        return y if dense.bias is None else y + keras.ops.convert_to_tensor(dense.bias)


def _multiplies_rows(dense, x):
    precisions = {dense.compute_dtype, keras.backend.standardize_dtype(x.dtype)}
    return jax is not None and on_cpu(x) and precisions == {"float32"} and _is_plain(dense)


def _multiply(x, kernel):
    """Return `x @ kernel`, with gradients of our own (JAX)."""

    def plain(x, kernel):
        rows = keras.ops.reshape(x, (-1, x.shape[-1]))
        return keras.ops.reshape(rows @ kernel, (*x.shape[:-1], -1))

    def forward(x, kernel):
        return plain(x, kernel), (x, kernel)

    def backward(given, gradient):
        x, kernel = given
        # With a batch axis, XLA takes one and a half times as long for the kernel's gradient.
        rows, seen = (keras.ops.reshape(part, (-1, part.shape[-1])) for part in (x, gradient))
        to_x = keras.ops.reshape(seen @ kernel.T, x.shape)
        if kernel.shape[0] <= kernel.shape[1]:
            return to_x, rows.T @ seen
        # So it does for a product with more rows than columns.
        return to_x, jax.lax.optimization_barrier(seen.T @ rows).T

    multiply = jax.custom_vjp(plain)
    multiply.defvjp(forward, backward)
    return multiply(x, kernel)


def linear_gelu(dense: keras.layers.Dense, x: Any, training: Any = False) -> Any:
    """Return `gelu(linear(dense, x), training)`.

    At inference under PyTorch, in float32 on a CPU, oneDNN applies the GELU to each part of
    the product while that is in the cache.
    """
    if _is_one_operation(dense, x) and _runs_onednn(x):
        return _product(dense, x, "gelu")
    return gelu(linear(dense, x, training), training)


def _is_one_operation(dense, x):
    return (
        torch is not None
        and dense.quantization_mode is None
        and not has_hooks(dense)
        and has_dtype(x, dense.compute_dtype)
    )


def _runs_onednn(x):
    # The operation has no gradient, and serves the graphs that PyTorch compiles.
    # The size comes last: a comparison would fix the batch size of an exported graph.
    return (
        ONEDNN is not None
        and not torch.is_grad_enabled()
        and x.dtype in (torch.float32, torch.bfloat16)
        and on_cpu(x)
        and not is_traced(x)
        and x.numel() >= LARGE
    )


def _product(dense, x, activation=""):
    kernel = value_of(kernel_of(dense)).T
    bias = None if dense.bias is None else value_of(dense.bias)
    if _runs_onednn(x):
        return ONEDNN(x, kernel, bias, activation or "none", [], "none" if activation else "")
    return torch.nn.functional.linear(x, kernel, bias)


def layer_norm(norm: keras.layers.LayerNormalization, x: Any) -> Any:
    """Apply a `LayerNormalization` over the last axis; under PyTorch, without its conversions.

    Args:
        norm: A layer. In float16, and where `runs_straight` says so, Keras calls it.
        x: `(..., dim)`.
    """
    if not runs_straight(norm, x, norm.compute_dtype):
        return norm(x)
    # It computes the statistics of bfloat16 in float32, too.
    fits = (
        x.dtype in (torch.float32, torch.bfloat16)
        and type(norm) is keras.layers.LayerNormalization
        and norm.axis in ([-1], [x.ndim - 1])
        and not norm.rms_scaling
    )
    if not fits:
        return norm.call(x)
    gamma, beta = (None if part is None else value_of(part) for part in (norm.gamma, norm.beta))
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, norm.epsilon)


def add_scaled(x: Any, branch: Any, scale: keras.layers.Layer) -> Any:
    """Return `x + scale(branch)`; under PyTorch, one operation.

    Args:
        x: Tokens.
        branch: Tensor of the same shape.
        scale: A `LayerScale`. One that has hooks is called.
    """
    if not runs_straight(scale, branch, scale.compute_dtype) or x.dtype is not branch.dtype:
        return x + scale(branch)
    return torch.addcmul(x, branch, value_of(scale.gamma))


def value_of(weight: Any) -> Any:
    """Return the tensor of a variable, in the precision of the layer that is called."""
    return weight.value if isinstance(weight, keras.Variable) else weight


def convolution(layer: keras.layers.Conv2D, x: Any, training: Any = False) -> Any:
    """Apply a `Conv2D` without activation, channels last.

    In float32 on a CPU, under PyTorch and JAX, a convolution of adjacent patches is one matrix
    product. In training under JAX on a CPU, the kernel gradients of other convolutions are
    matrix products, too: XLA's convolution is several times slower. Under PyTorch, Keras copies
    the image to channels first and back before it convolves; here, it stays as it is.

    Args:
        layer: A built layer without groups or dilation. A layer with hooks is called as usual.
        x: `(batch, rows, columns, channels)`.
        training: Whether a backward pass follows.

    Returns:
        `(batch, new rows, new columns, filters)`.
    """
    is_square = len({*layer.kernel_size}) == len({*layer.strides}) == 1
    if has_hooks(layer) or not is_square:
        return layer(x)
    side, stride = layer.kernel_size[0], layer.strides[0]
    precisions = {layer.compute_dtype, keras.backend.standardize_dtype(x.dtype)}
    in_float32 = on_cpu(x) and precisions == {"float32"}
    if in_float32 and side == stride and not (x.shape[1] % side or x.shape[2] % side):
        y = _project_patches(x, keras.ops.convert_to_tensor(layer.kernel))
    elif _convolves_in_place(layer, x):
        return _convolve_in_place(layer, x)
    elif in_float32 and jax is not None and training:
        if layer.padding == "same":
            before, after = (side - 1) // 2, side // 2
            x = keras.ops.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
        y = _convolve(x, keras.ops.convert_to_tensor(layer.kernel), stride)
    else:
        return layer(x)
    return y if layer.bias is None else y + keras.ops.convert_to_tensor(layer.bias)


def _convolves_in_place(layer, x):
    is_even = layer.padding == "valid" or (layer.strides[0] == 1 and layer.kernel_size[0] % 2)
    return is_even and is_eager(x) and runs_straight(layer, x, layer.compute_dtype)


def _convolve_in_place(layer, x):
    padding = layer.kernel_size[0] // 2 if layer.padding == "same" else 0
    kernel = value_of(layer.kernel).permute(3, 2, 0, 1)
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    bias = None if layer.bias is None else value_of(layer.bias)
    x = x.permute(0, 3, 1, 2)
    return torch.nn.functional.conv2d(x, kernel, bias, layer.strides, padding).permute(0, 2, 3, 1)


def _project_patches(x, kernel):
    side, _, channels, filters = kernel.shape
    rows, columns = x.shape[1] // side, x.shape[2] // side
    patches = keras.ops.reshape(x, (-1, rows, side, columns, side, channels))
    patches = keras.ops.transpose(patches, (0, 1, 3, 2, 4, 5))
    patches = keras.ops.reshape(patches, (-1, rows, columns, side * side * channels))
    return keras.ops.matmul(patches, keras.ops.reshape(kernel, (-1, filters)))


def _convolve(x, kernel, stride):
    def plain(x, kernel):
        return keras.ops.conv(x, kernel, stride, "valid", "channels_last")

    def forward(x, kernel):
        return plain(x, kernel), (x, kernel)

    def backward(given, gradient):
        x, kernel = given
        _, to_input = jax.vjp(lambda x: plain(x, kernel), x)
        _, rows, columns, filters = gradient.shape
        starts = [(i, j) for i in range(kernel.shape[0]) for j in range(kernel.shape[1])]

        def add(total, pair):
            # One image at a time: its patches fit in the cache.
            image, seen = pair
            places = [
                image[i : i + stride * rows : stride, j : j + stride * columns : stride]
                for i, j in starts
            ]
            patches = keras.ops.concatenate(places, axis=-1)
            return total + keras.ops.tensordot(patches, seen, ((0, 1), (0, 1))), None

        size = (kernel.shape[2] * len(starts), filters)
        total, _ = jax.lax.scan(add, keras.ops.zeros(size, kernel.dtype), (x, gradient))
        return *to_input(gradient), keras.ops.reshape(total, kernel.shape)

    convolve = jax.custom_vjp(plain)
    convolve.defvjp(forward, backward)
    return convolve(x, kernel)


def convolve_maps(maps: Any, kernel: Any) -> Any:
    """Convolve each head's map with its kernel, with zero padding.

    Under JAX on a CPU, it is a sum of shifted maps, which XLA fuses into one loop, several
    times faster than a depthwise convolution.

    Args:
        maps: `(batch, heads, queries, keys)`. PyTorch is several times faster if the heads
            are last in memory.
        kernel: `(heads, 1, height, width)`.
    """
    if jax is None or not on_cpu(maps):
        kernel = keras.ops.transpose(kernel, (2, 3, 0, 1))
        return keras.ops.depthwise_conv(maps, kernel, padding="same", data_format="channels_first")
    _, _, queries, keys = maps.shape
    heads, _, height, width = kernel.shape
    up, left = height // 2, width // 2
    padded = keras.ops.pad(maps, ((0, 0), (0, 0), (up, up), (left, left)))
    return sum(
        padded[:, :, i : i + queries, j : j + keys]
        * keras.ops.reshape(kernel[:, 0, i, j], (heads, 1, 1))
        for i in range(height)
        for j in range(width)
    )


def has_fused_attention(dtype: str) -> bool:
    """Return whether the backend's fused attention supports `dtype` on this device.

    JAX's does not support float16 on a CPU.
    """
    return not (jax is not None and dtype == "float16" and jax.default_backend() == "cpu")


def attention(
    query: Any, key: Any, value: Any, training: Any = False, mask: Any | None = None
) -> Any:
    r"""Return $\mathrm{softmax}(Q K^\top / \sqrt d)\,V$ per head.

    PyTorch runs its fused kernel without the copies of the inputs that `keras.ops` makes. On a
    CPU in bfloat16, where that kernel takes 2 to 7 times as long, it multiplies matrices.
    JAX in float32 on a CPU runs matrix products with heads first and, at inference, divides
    by the sums of the softmax after the product with the values, which has fewer entries
    than the maps. In training, it saves the maps and the inputs of the products.

    Args:
        query: `(batch, queries, heads, size)`.
        key: `(batch, keys, heads, size)`.
        value: The same shape as `key`.
        training: Whether a backward pass follows.
        mask: `(batch or 1, 1, queries or 1, keys)`, True where a query attends a key; None is
            True everywhere. A query without a key gives 0.

    Returns:
        `(batch, queries, heads, size)`.
    """
    if mask is None:
        return _attention(query, key, value, training)
    # The kernels differ, and some give NaN, where a query has no key: let it see all.
    has_keys = keras.ops.any(mask, axis=-1, keepdims=True)
    mask = keras.ops.logical_or(mask, keras.ops.logical_not(has_keys))
    y = _attention(query, key, value, training, mask)
    return masked(y, keras.ops.transpose(has_keys, (0, 2, 1, 3)))


def _attention(query, key, value, training, mask=None):
    if torch is not None:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if on_cpu(query) and query.dtype is torch.bfloat16:
            logits = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(2, 3))
            return torch.matmul(softmax(hidden(logits, mask)), value).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return y.transpose(1, 2)
    if not on_cpu(query) or keras.backend.standardize_dtype(query.dtype) != "float32":
        return keras.ops.dot_product_attention(query, key, value, mask=mask)
    query = query * query.shape[-1] ** -0.5
    query, key, value = (
        _saved(keras.ops.transpose(part, (0, 2, 1, 3))) for part in (query, key, value)
    )
    logits = keras.ops.matmul(query, keras.ops.transpose(key, (0, 1, 3, 2)))
    logits = hidden(logits, mask)
    if training:
        y = keras.ops.matmul(_saved_softmax(logits), value)
    else:
        # Subtracting a constant from a row of logits leaves its softmax unchanged.
        largest = keras.ops.stop_gradient(keras.ops.max(logits, axis=-1, keepdims=True))
        weights = keras.ops.exp(logits - largest)
        sums = keras.ops.sum(weights, axis=-1, keepdims=True)
        y = keras.ops.matmul(weights, value) / sums
    return _saved(keras.ops.transpose(y, (0, 2, 1, 3)))


def _saved(x):
    """Return `x`, which `keep_products` saves (JAX)."""
    return ad_checkpoint.checkpoint_name(x, SAVED)


if jax is not None:

    @jax.custom_jvp
    def _saved_softmax(logits):
        return jax.nn.softmax(logits)

    @_saved_softmax.defjvp
    def _softmax_jvp(primals, tangents):
        # JAX's own computes the derivative from a softmax that cannot be marked.
        y, (change,) = _saved(_saved_softmax(*primals)), tangents
        return y, y * (change - keras.ops.sum(y * change, axis=-1, keepdims=True))


def softmax(logits: Any) -> Any:
    """Apply the softmax over the last axis in float32, and round the result to `logits.dtype`.

    PyTorch's operation does so for half precision without copies in float32.
    """
    if torch is not None:
        return torch.softmax(logits, dim=-1)
    y = keras.ops.softmax(keras.ops.cast(logits, "float32"))
    return keras.ops.cast(y, logits.dtype)


def mix(kernel: Any, x: Any, bias: Any | None = None, heads_last: bool = False) -> Any:
    """Return `kernel @ x + bias` for each matrix of a batch.

    Args:
        kernel: `(output rows, rows)`.
        x: `(batch, rows, columns)`.
        bias: `(output rows,)`, or None.
        heads_last: Whether each column of the result is contiguous in memory (PyTorch).

    Returns:
        `(batch, output rows, columns)`.
    """
    if torch is None:
        batch = keras.ops.shape(x)[0]
        y = keras.ops.matmul(keras.ops.broadcast_to(kernel, (batch, *kernel.shape)), x)
        return y if bias is None else y + keras.ops.expand_dims(bias, -1)
    kernel = value_of(kernel).expand(x.shape[0], -1, -1)
    # The product and its gradients keep the memory layout of `x`.
    turned = heads_last or x.stride(1) == 1
    pair = (x.transpose(1, 2), kernel.transpose(1, 2)) if turned else (kernel, x)
    if bias is None:
        y = torch.bmm(*pair)
    else:  # One operation for product and bias saves a pass over the maps.
        bias = value_of(bias)
        y = torch.baddbmm(bias if turned else bias[:, None], *pair)
    y = y.transpose(1, 2) if turned else y
    return y if heads_last else y.contiguous()


def batch_norm(
    norm: keras.layers.BatchNormalization,
    x: Any,
    training: Any = True,
    offset: Any = None,
    scale: float = 1.0,
) -> Any:
    """Apply a batch normalization; under PyTorch, as one operation.

    Args:
        norm: A built layer.
        x: `(batch, channels, ...)`, or another order that `norm.axis` gives.
        training: Whether the statistics of the batch are used.
        offset: In training, `(channels,)`, a constant that is added to `x` in thought: it
            changes nothing but the running mean.
        scale: A constant that multiplies the result.
    """
    y = _batch_norm(norm, x, training, scale)
    if offset is not None:
        share = keras.ops.cast(offset, norm.moving_mean.dtype) * (1 - norm.momentum)
        norm.moving_mean.assign(norm.moving_mean + keras.ops.stop_gradient(share))
    return y


def batch_norm_relu6(norm: keras.layers.BatchNormalization, x: Any, training: Any = True) -> Any:
    """Return `relu6(batch_norm(norm, x, training))`.

    In training under PyTorch, in float32 on a CPU, it is one operation if the channels are last
    in memory and do not fill the processor's vectors: PyTorch's own takes twice as long then.
    """
    if has_hooks(norm):  # A hook may hold the tensor that `relu6` would overwrite.
        return keras.ops.relu6(norm(x, training=training))
    return _batch_norm(norm, x, training, clips=True)


def _batch_norm(norm, x, training, scale=1.0, clips=False):
    learns = training and norm.trainable
    if not _is_one_normalization(norm, x, learns, scale):
        y = norm(x, training=training)
        y = y if scale == 1 else scale * y
        return relu6(y) if clips else y
    gamma, beta = (
        None if part is None else keras.ops.convert_to_tensor(part)
        for part in (norm.gamma, norm.beta)
    )
    if scale != 1:  # A pass over the output less.
        gamma, beta = scale * gamma, scale * beta
    x = x.movedim(norm.axis, 1)
    if not learns:
        mean, variance = value_of(norm.moving_mean), value_of(norm.moving_variance)
        y = torch.nn.functional.batch_norm(x, mean, variance, gamma, beta, False, 0, norm.epsilon)
        return (relu6(y) if clips else y).movedim(1, norm.axis)
    rows = x.movedim(1, -1)
    if clips and gamma is not None and beta is not None and _runs_rows(rows):
        y, mean, variance = _NormalizedRows.apply(rows.flatten(0, -2), gamma, beta, norm.epsilon)
        y = y.view(rows.shape).movedim(-1, 1)
    else:
        # PyTorch computes the statistics of bfloat16 in float32, too.
        mean, variance = x.new_zeros(2, x.shape[1], dtype=torch.float32)
        # PyTorch's momentum is the weight of the new value: with 1, `mean` and `variance`
        # become the statistics of this batch.
        y = torch.nn.functional.batch_norm(x, mean, variance, gamma, beta, True, 1.0, norm.epsilon)
        y = relu6(y) if clips else y
        # PyTorch keeps the unbiased variance, Keras the biased one.
        count = x.numel() / x.shape[1]
        variance = variance * ((count - 1) / count)
    for moving, new in ((norm.moving_mean, mean), (norm.moving_variance, variance)):
        moving.assign(moving * norm.momentum + new * (1 - norm.momentum))
    return y.movedim(1, norm.axis)


def _is_one_normalization(norm, x, learns, scale):
    if torch is None or has_hooks(norm) or x.dtype is torch.float16:
        return False
    if scale != 1 and (norm.gamma is None or norm.beta is None):
        return False
    # On several devices, the statistics are those of the whole batch.
    special = norm.renorm or norm.synchronized or has_replaced_moments(norm)
    return not special if learns else is_eager(x)


def _runs_rows(x):
    fits = x.dtype is torch.float32 and x.is_contiguous() and x.shape[-1] % 16
    return fits and on_cpu(x) and not is_traced(x)


if torch is not None:

    class _NormalizedRows(torch.autograd.Function):
        """ReLU6 of a batch normalization of the rows of a matrix, some rows at a time.

        Sums over rows are matrix products, and the rows stay in the cache from one operation
        to the next. Returns the output, the mean and the biased variance.
        """

        @staticmethod
        def forward(ctx, x, gamma, beta, epsilon):
            count, y = len(x), torch.empty_like(x)
            ones = x.new_ones(1, count)
            mean = (ones @ x) / count
            variance = torch.zeros_like(mean)
            for (part,) in _some_rows(x):
                variance.addmm_(ones[:, : len(part)], (part - mean).square_())
            variance /= count
            inverse = torch.rsqrt(variance + epsilon)
            scale = gamma * inverse
            shift = beta - mean * scale
            for part, out in _some_rows(x, y):
                torch.addcmul(shift, part, scale, out=out).clamp_(0, 6)
            ctx.save_for_backward(x, y, gamma, mean, inverse)
            ctx.epsilon = epsilon
            ctx.mark_non_differentiable(mean, variance)
            return y, mean[0], variance[0]

        @staticmethod
        def backward(ctx, gradient, *_):
            x, y, gamma, mean, inverse = ctx.saved_tensors
            if torch.is_grad_enabled():  # The gradient may be differentiated again.
                seen = gradient * ((y > 0) & (y < 6))
                statistics = None, None, mean[0], inverse[0], True, ctx.epsilon
                gradients = torch.ops.aten.native_batch_norm_backward(
                    seen, x, gamma, *statistics, [True] * 3
                )
                return *gradients, None
            count, to_x = len(x), torch.empty_like(x)
            ones = x.new_ones(1, count)
            # The sums over the rows of the gradient, and of its products with centred inputs.
            sums, products = torch.zeros_like(mean), torch.zeros_like(mean)
            clip = torch.ops.aten.hardtanh_backward.grad_input
            for part, given, cut, seen in _some_rows(x, gradient.contiguous(), y, to_x):
                clip(given, cut, 0, 6, grad_input=seen)
                sums.addmm_(ones[:, : len(part)], seen)
                products.addmm_(ones[:, : len(part)], (part - mean).mul_(seen))
            to_gamma, scale = products * inverse, gamma * inverse
            slope = -scale * inverse * to_gamma / count
            constant = -scale * sums / count - slope * mean
            for part, seen in _some_rows(x, to_x):
                seen.mul_(scale).addcmul_(part, slope).add_(constant)
            return to_x, to_gamma[0], sums[0], None


def _some_rows(*matrices):
    """Split matrices of one shape into pieces of some rows."""
    at_a_time = max(1, ROWS // (matrices[0].shape[1] * matrices[0].element_size()))
    return zip(*(matrix.split(at_a_time) for matrix in matrices), strict=True)


def gelu(x: Any, training: Any = False) -> Any:
    r"""Return $x\,(1 + \mathrm{erf}(x / \sqrt 2)) / 2$, the exact GELU.

    PyTorch has it as one operation. Keras computes it by `erfc` under JAX and TensorFlow:
    in XLA on a CPU, a polynomial several times longer than that of `erf`, and an operation
    that ONNX Runtime lacks. Here, TensorFlow, and JAX on a CPU, compute it by `erf`; JAX at
    inference by a rational function, because its SavedModels cannot hold `erf`. In half
    precision, $1 + \mathrm{erf}$ would lose small values, so Keras's form is kept.
    """
    if is_eager(x):
        return torch.nn.functional.gelu(x)
    plain = torch is not None or (jax is not None and not on_cpu(x))
    if plain or keras.backend.standardize_dtype(x.dtype) != "float32":
        return keras.activations.gelu(x, approximate=False)
    if training or jax is None:
        return 0.5 * x * (1 + keras.ops.erf(x * 0.5**0.5))
    near = keras.ops.clip(x, -ERF_REACH, ERF_REACH)
    above, below = (polynomial(terms, near * near) for terms in (ERF_ABOVE, ERF_BELOW))
    return x * (0.5 + near * above / below)


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    r"""Return $\sum_i c_i x^i$."""
    y = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        y = y * x + coefficient
    return y


def keep_products(step: Callable) -> Callable:
    """Under JAX on a CPU, make `step` save only matrix products for its backward pass.

    Recomputing everything else is faster than writing it to memory and reading it back, except
    in `attention`. The same holds for products with few terms, such as mixes of heads, which
    are not saved.
    """
    if jax is None or jax.default_backend() != "cpu":
        return step
    is_marked = jax.checkpoint_policies.save_only_these_names(SAVED)

    def is_kept(primitive, *operands, **parameters):
        if is_marked(primitive, *operands, **parameters):
            return True
        if primitive is not jax.lax.dot_general_p:
            return False
        (summed, _), _ = parameters["dimension_numbers"]
        return math.prod(operands[0].shape[axis] for axis in summed) >= TERMS

    return jax.checkpoint(step, policy=is_kept, prevent_cse=False)


def relu6(x: Any) -> Any:
    """Return `x` clipped to [0, 6]; PyTorch overwrites `x`, which must not be used again."""
    if torch is None or is_traced(x):
        return keras.ops.relu6(x)
    return torch.nn.functional.relu6(x, inplace=True)


def in_pieces(function: Callable[[Any], Any], maps: Any, expansion: int = 1) -> Any:
    """Apply `function` to a batch of maps, under PyTorch on a CPU a few images at a time.

    Intermediate results then fit in the cache. A traced graph is not split into pieces,
    because their number depends on the batch size.

    Args:
        function: A function from maps to maps that treats each image independently.
        maps: `(batch, heads, queries, keys)`.
        expansion: Largest number of heads in intermediate results, relative to `maps`.
    """
    if torch is None or is_traced(maps) or not on_cpu(maps):
        return function(maps)
    at_a_time = len(maps) * PIECE // max(1, expansion * maps.nbytes)
    return torch.cat([function(piece) for piece in maps.split(max(1, at_a_time))])


def whole_numbers(count: int, dtype: str) -> Any:
    """Return the vector 0, 1, ..., `count - 1`.

    Under JAX it is a constant of the graph, because jax2onnx cannot convert
    `jax.numpy.arange`. Under PyTorch, a constant would be copied to the GPU in every call.
    """
    if jax is not None:
        return keras.ops.convert_to_tensor(np.arange(count, dtype="float32"), dtype)
    # In float32, because TensorFlow has no range in half precision.
    numbers = keras.ops.arange(count, dtype="float32")
    return numbers if has_dtype(numbers, dtype) else keras.ops.cast(numbers, dtype)
