"""The one door to what a backend does faster than `keras.ops` does it.

Each function here is equal to the plain form that it falls back to, on every backend but
the one that it is for.
"""

import math
from collections.abc import Callable
from typing import Any

import keras

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

TERMS = 32
"""How many terms a product of matrices has that is kept for the backward pass."""


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
        and getattr(layer, "_remat_mode", None) is None
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


def attention(query: Any, key: Any, value: Any) -> Any:
    """Aggregate `value` by the softmax of the scaled products of `query` and `key`.

    On PyTorch without the copies of all three that `keras.ops` makes first.

    Args:
        query: `(batch, queries, heads, size)`; `key` and `value` alike,
            `(batch, keys, heads, size)`.

    Returns:
        `(batch, queries, heads, size)`.
    """
    if torch is None:
        return keras.ops.dot_product_attention(query, key, value)
    heads_first = (part.transpose(1, 2) for part in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


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

    In float32 under JAX, training is from `erf`: the `erfc` that JAX takes is a several times
    longer polynomial. Elsewhere not: a SavedModel can't hold JAX's `erf`, and in half
    precision $1 + \mathrm{erf}$ would lose the small values.
    """
    if jax is None or not training or keras.backend.standardize_dtype(x.dtype) != "float32":
        return keras.activations.gelu(x, approximate=False)
    return 0.5 * x * (1 + keras.ops.erf(x * 0.5**0.5))


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
    if torch is None or maps.device.type != "cpu":
        return function(maps)
    at_a_time = len(maps) * PIECE // max(1, expansion * maps.nbytes)
    return torch.cat([function(piece) for piece in maps.split(max(1, at_a_time))])
