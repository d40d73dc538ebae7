"""The one door to what a backend does faster than `keras.ops` does it.

Each function here is equal to the plain form that it falls back to on the backends that it
isn't for.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import remat_mode

if keras.backend.backend() == "torch":
    import torch
else:
    torch = None
if keras.backend.backend() == "jax":
    import jax
else:
    jax = None

PIECE = 12 << 20
"""How many bytes of maps are made at a time where they are made in pieces."""

TERMS = 96
"""How many terms a product of matrices has that is kept for the backward pass: more than a
head is wide."""

# Where |x| is at most ERF_REACH, erf(x / sqrt 2) / 2 is x times the ratio of these polynomials
# in x², to 6e-8: a least-squares fit, weighted until the error was even. Beyond, it is 1/2.
ERF_REACH = 5.2
ERF_ABOVE = (0.398941917, 0.0495935757, 0.00551873918, 3.14264557e-4, 5.84065245e-6)
ERF_BELOW = (1.0, 0.290973425, 0.0373398957, 0.00270375366, 1.12741292e-4, 5.01902136e-7)


def gains_from_scan() -> bool:
    """Return whether one loop over equal blocks trains faster than the blocks in a row."""
    return jax is not None


def is_compiled_by_jax(x: Any) -> bool:
    """Return whether `x` is a placeholder in a function that JAX is compiling."""
    return jax is not None and isinstance(x, jax.core.Tracer)


def runs_straight(layer: keras.layers.Layer, x: Any, dtype: str) -> bool:
    """Tell whether a child's `call` may run without what Keras does around it.

    That is checks, casts and scopes, all done for the parent a moment before; under
    PyTorch, which runs eagerly, they take longer than a norm of a small network. What is
    not built, is quantized, is a user's own or has more to do around it (recomputing,
    regularizing activities) is called as Keras calls it.

    Args:
        layer: The child.
        x: Its input, a tensor or several.
        dtype: The precision in which its parent computes.
    """
    return (
        torch is not None
        and layer.built
        and type(layer).__module__.startswith(("keras.", "keras_vitx."))
        and layer.compute_dtype == dtype
        and layer.quantization_mode is None
        and layer.activity_regularizer is None
        and remat_mode(layer) is None
        and all(
            isinstance(tensor, torch.Tensor) and tensor.dtype is getattr(torch, dtype)
            for tensor in (x if isinstance(x, tuple) else (x,))
        )
    )


def linear(dense: keras.layers.Dense, x: Any) -> Any:
    """Run a `Dense` without activation, on PyTorch in one operation with its bias.

    `keras.layers.Dense` adds the bias in a pass of its own.

    Args:
        dense: Built; adapted (LoRA) or not. What is quantized runs as it is.
        x: `(..., features)`.

    Returns:
        `(..., units)`.
    """
    fits = (
        torch is not None
        and dense.quantization_mode is None
        and dense.compute_dtype == keras.backend.standardize_dtype(x.dtype)
    )
    if not fits:
        return dense(x)
    kernel = keras.ops.convert_to_tensor(dense.kernel)
    bias = None if dense.bias is None else keras.ops.convert_to_tensor(dense.bias)
    return torch.nn.functional.linear(x, kernel.T, bias)


def on_cpu(x: Any) -> bool:
    """Tell whether `x` is computed by PyTorch or JAX on a CPU."""
    if torch is not None:
        return x.device.type == "cpu"
    return jax is not None and jax.default_backend() == "cpu"


def convolution(layer: keras.layers.Conv2D, x: Any, training: Any = False) -> Any:
    """Run a `Conv2D` without activation, channels last.

    In float32 on a CPU, PyTorch and JAX project patches that touch each other in one product
    of matrices. In training, JAX there makes the gradient of other kernels of products too,
    since XLA's is several times slower.

    Args:
        layer: Built, without groups or dilation.
        x: `(batch, rows, columns, channels)`.
        training: Whether a backward pass will follow.

    Returns:
        `(batch, new rows, new columns, filters)`.
    """
    is_square = len({*layer.kernel_size}) == len({*layer.strides}) == 1
    precisions = {layer.compute_dtype, keras.backend.standardize_dtype(x.dtype)}
    if not (on_cpu(x) and is_square and precisions == {"float32"}):
        return layer(x)
    side, stride = layer.kernel_size[0], layer.strides[0]
    if side == stride and not (x.shape[1] % side or x.shape[2] % side):
        y = _project_patches(x, keras.ops.convert_to_tensor(layer.kernel))
    elif jax is not None and training:
        if layer.padding == "same":
            before, after = (side - 1) // 2, side // 2
            x = keras.ops.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
        y = _convolve(x, keras.ops.convert_to_tensor(layer.kernel), stride)
    else:
        return layer(x)
    return y if layer.bias is None else y + keras.ops.convert_to_tensor(layer.bias)


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
            # Image by image, because the patches of one lie in the cache.
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


def has_fused_attention(dtype: str) -> bool:
    """Return whether the backend's fused attention computes in `dtype` on this device.

    JAX's fails on a CPU in float16.
    """
    return not (jax is not None and dtype == "float16" and jax.default_backend() == "cpu")


def attention(query: Any, key: Any, value: Any, training: Any = False) -> Any:
    """Aggregate `value` by the softmax of the scaled products of `query` and `key`.

    On PyTorch without the copies of all three that `keras.ops` makes first; under JAX, in
    float32 on a CPU, with heads first, and outside training divided by the sums after the
    product, where there are fewer numbers than in the maps.

    Args:
        query: `(batch, queries, heads, size)`; `key` and `value` alike,
            `(batch, keys, heads, size)`.
        training: Whether a backward pass will follow.

    Returns:
        `(batch, queries, heads, size)`.
    """
    if torch is not None:
        parts = (part.transpose(1, 2) for part in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2)
    if not on_cpu(query) or keras.backend.standardize_dtype(query.dtype) != "float32":
        return keras.ops.dot_product_attention(query, key, value)
    query = query * query.shape[-1] ** -0.5
    query, key, value = (keras.ops.transpose(part, (0, 2, 1, 3)) for part in (query, key, value))
    logits = keras.ops.matmul(query, keras.ops.transpose(key, (0, 1, 3, 2)))
    if training:
        y = keras.ops.matmul(keras.ops.softmax(logits), value)
    else:
        # A softmax is the same whatever is taken from all logits of a row.
        largest = keras.ops.stop_gradient(keras.ops.max(logits, axis=-1, keepdims=True))
        weights = keras.ops.exp(logits - largest)
        sums = keras.ops.sum(weights, axis=-1, keepdims=True)
        y = keras.ops.matmul(weights, value) / sums
    return keras.ops.transpose(y, (0, 2, 1, 3))


def mix(kernel: Any, x: Any, bias: Any | None = None, heads_last: bool = False) -> Any:
    """Multiply each of a batch of matrices by `kernel` from the left, and add `bias` to rows.

    Args:
        kernel: `(rows out, rows)`.
        x: `(batch, rows, columns)`.
        bias: `(rows out,)`, or None.
        heads_last: Whether a column of the result lies together in memory, under PyTorch.

    Returns:
        `(batch, rows out, columns)`.
    """
    batch = keras.ops.shape(x)[0]
    if torch is None:
        y = keras.ops.matmul(keras.ops.broadcast_to(kernel, (batch, *kernel.shape)), x)
        return y if bias is None else y + keras.ops.expand_dims(bias, -1)
    kernel = keras.ops.convert_to_tensor(kernel).expand(batch, -1, -1)
    # The product is made as `x` lies, and so are the gradients.
    turned = heads_last or x.stride(1) == 1
    pair = (x.mT, kernel.mT) if turned else (kernel, x)
    if bias is None:
        y = torch.bmm(*pair)
    else:  # With its bias it is one operation, which leaves out a pass over maps.
        bias = keras.ops.convert_to_tensor(bias)
        y = torch.baddbmm(bias if turned else bias[:, None], *pair)
    y = y.mT if turned else y
    return y if heads_last else y.contiguous()


def batch_norm(norm: keras.layers.BatchNormalization, x: Any) -> Any:
    """Run a batch normalization over axis 1 in training, on PyTorch in one operation."""
    plain = norm.renorm or norm.synchronized or not norm.trainable
    if torch is None or plain or x.dtype is not torch.float32:
        return norm(x, training=True)
    mean, variance = x.new_zeros(2, x.shape[1])
    gamma, beta = map(keras.ops.convert_to_tensor, (norm.gamma, norm.beta))
    # With a momentum of 1, which in PyTorch is the weight of what is new, the running
    # statistics are this batch's.
    y = torch.nn.functional.batch_norm(x, mean, variance, gamma, beta, True, 1.0, norm.epsilon)
    count = x.numel() / x.shape[1]
    # PyTorch's is the unbiased variance, Keras's is not.
    for moving, new in (
        (norm.moving_mean, mean),
        (norm.moving_variance, variance * ((count - 1) / count)),
    ):
        moving.assign(moving * norm.momentum + new * (1 - norm.momentum))
    return y


def gelu(x: Any, training: Any = False) -> Any:
    r"""Return $x\,(1 + \mathrm{erf}(x / \sqrt 2)) / 2$, the exact GELU.

    PyTorch has it in one operation. JAX and TensorFlow make it of `erfc`, which XLA computes
    by a several times longer polynomial than `erf`; so in float32 it is made of `erf`, and at
    inference under JAX, whose `erf` a SavedModel can't hold, of plain operations. In half
    precision $1 + \mathrm{erf}$ would lose the small values.
    """
    if torch is not None or keras.backend.standardize_dtype(x.dtype) != "float32":
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
    """Let `step` keep, under JAX, only products of matrices for its backward pass.

    The rest is computed anew, which is quicker than writing it to memory and reading it. So
    are products of few terms: mixes of heads.
    """
    if jax is None:
        return step

    def is_kept(primitive, *operands, **parameters):
        if primitive is not jax.lax.dot_general_p:
            return False
        (summed, _), _ = parameters["dimension_numbers"]
        return math.prod(operands[0].shape[axis] for axis in summed) >= TERMS

    return jax.checkpoint(step, policy=is_kept, prevent_cse=False)


def relu6(x: Any) -> Any:
    """Return `x`, which no one needs any more, limited to [0, 6]."""
    return keras.ops.relu6(x) if torch is None else torch.nn.functional.relu6(x, inplace=True)


def in_pieces(function: Callable[[Any], Any], maps: Any, expansion: int = 1) -> Any:
    """Apply `function` to a batch of maps, on PyTorch and a CPU to a few images at a time.

    What it makes on the way then stays in the cache.

    Args:
        function: Maps to maps, image by image.
        maps: `(batch, heads, queries, keys)`.
        expansion: The most heads on the way, over those of `maps`.
    """
    if torch is None or not on_cpu(maps):
        return function(maps)
    at_a_time = len(maps) * PIECE // max(1, expansion * maps.nbytes)
    return torch.cat([function(piece) for piece in maps.split(max(1, at_a_time))])
