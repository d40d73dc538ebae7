"""`keras.ops`, with less work around the operations that run in every block under PyTorch.

`keras.ops` searches its arguments for symbolic tensors. PyTorch runs eagerly, so that it does
so at every step, and the search takes longer than a reshape. Where `call` is given tensors
of PyTorch, these functions go to them directly; all else is passed on to `keras.ops`.
"""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.layers.fast import has_dtype, is_eager, torch


def __getattr__(name: str) -> Any:
    return getattr(keras.ops, name)


def shape(x: Any) -> tuple:
    """Return the sizes of the axes."""
    return tuple(x.shape) if is_eager(x) else keras.ops.shape(x)


def reshape(x: Any, newshape: Sequence) -> Any:
    """Return `x` in another shape."""
    return x.reshape(newshape) if is_eager(x) else keras.ops.reshape(x, newshape)


def transpose(x: Any, axes: Sequence[int]) -> Any:
    """Return `x` with its axes in another order."""
    return x.permute(axes) if is_eager(x) else keras.ops.transpose(x, axes)


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """Split `x` along an axis."""
    if is_eager(x) and isinstance(indices_or_sections, int):
        return x.chunk(indices_or_sections, axis)
    return keras.ops.split(x, indices_or_sections, axis)


def matmul(x1: Any, x2: Any) -> Any:
    """Multiply matrices."""
    if is_eager(x1) and is_eager(x2) and x1.dtype is x2.dtype:
        if x2.ndim > 3 and x2.stride(-2) == 1:
            # PyTorch would copy it column by column to flatten the batch: copy rows instead.
            x2 = x2.mT.contiguous().mT
        return x1 @ x2
    return keras.ops.matmul(x1, x2)


def stack(x: Sequence, axis: int = 0) -> Any:
    """Stack tensors along a new axis."""
    return torch.stack(x, axis) if all(map(is_eager, x)) else keras.ops.stack(x, axis)


def cast(x: Any, dtype: Any) -> Any:
    """Convert `x` to another precision."""
    return x if is_eager(x) and has_dtype(x, dtype) else keras.ops.cast(x, dtype)
