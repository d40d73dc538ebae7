"""The one door to what a backend does faster than `keras.ops` does it.

Each function here is equal to the plain form that it falls back to, on every backend but
the one that it is for.
"""

from typing import Any

import keras

if keras.backend.backend() == "torch":
    import torch
else:
    torch = None


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
        and dense.bias is not None
        and dense.quantization_mode is None
        and dense.compute_dtype == keras.backend.standardize_dtype(x.dtype)
    )
    if not fits:
        return dense(x)
    kernel, bias = map(keras.ops.convert_to_tensor, (dense.kernel, dense.bias))
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


def mix(kernel: Any, x: Any, bias: Any | None = None) -> Any:
    """Multiply each of a batch of matrices by `kernel` from the left, and add `bias` to rows.

    Args:
        kernel: `(rows out, rows)`.
        x: `(batch, rows, columns)`.
        bias: `(rows out,)`, or None.

    Returns:
        `(batch, rows out, columns)`.
    """
    kernel = keras.ops.broadcast_to(kernel, (keras.ops.shape(x)[0], *kernel.shape))
    if bias is None:
        return keras.ops.matmul(kernel, x)
    bias = keras.ops.expand_dims(bias, -1)
    if torch is None:
        return keras.ops.matmul(kernel, x) + bias
    # In one operation, which leaves out a pass over maps.
    return torch.baddbmm(bias.expand(len(x), -1, -1), kernel, x)
