"""Attention masks: which keys each query may attend.

A mask is boolean, True where a query may attend a key. Functions over maps take it as
`(batch, 1, queries, keys)`, in which the batch and the queries may be 1.
"""

from typing import Any

import keras
from keras import ops


def as_pairs(attention_mask: Any, queries: Any, keys: Any) -> Any:
    """Return a mask as a boolean tensor `(batch or 1, queries or 1, keys)`.

    Args:
        attention_mask: Broadcastable to `(batch, queries, keys)`.
        queries: A tensor `(batch, queries, ...)`.
        keys: A tensor `(batch, keys, ...)`.

    Raises:
        ValueError: if the mask has another shape.
    """
    mask = ops.cast(ops.convert_to_tensor(attention_mask), "bool")
    expected = (queries.shape[0], queries.shape[1], keys.shape[1])
    known = zip(reversed(mask.shape), reversed(expected), strict=False)
    if len(mask.shape) not in (2, 3) or any(
        size not in (1, None, wanted) and wanted is not None for size, wanted in known
    ):
        raise ValueError(
            f"`attention_mask` must be broadcastable to (batch, queries, keys) = {expected}; "
            "a mask of padding, (batch, keys), is passed as `mask[:, None, :]`. "
            f"Received: shape {tuple(mask.shape)}."
        )
    if len(mask.shape) == 2:
        mask = mask[None]
    if mask.shape[2] == 1 and keys.shape[1] != 1:
        batch, rows, _ = ops.shape(mask)
        mask = ops.broadcast_to(mask, (batch, rows, ops.shape(keys)[1]))
    return mask


def masked(maps: Any, mask: Any) -> Any:
    """Return maps, or logits, with zeros in the masked entries; `mask` may be None."""
    return maps if mask is None else ops.where(mask, maps, ops.zeros_like(maps))


def hidden(logits: Any, mask: Any) -> Any:
    """Return logits with a very low value in the masked entries, finite in every precision.

    `mask` may be None.
    """
    if mask is None:
        return logits
    lowest = -6e4 if keras.backend.standardize_dtype(logits.dtype) == "float16" else -1e30
    return ops.where(mask, logits, ops.full_like(logits, lowest))


def shares(mask: Any) -> Any:
    """Return the uniform attention over the allowed keys: 1 / their number, else 0.

    In float32, in the shape of `mask`. Rows without an allowed key are 0.
    """
    return renormalized(ops.cast(mask, "float32"), mask)


def renormalized(maps: Any, mask: Any) -> Any:
    """Return non-negative maps over the allowed keys, with rows that sum to 1, in float32.

    Rows without an allowed key are 0.
    """
    maps = masked(ops.cast(maps, "float32"), mask)
    sums = ops.sum(maps, axis=-1, keepdims=True)
    return maps / ops.where(sums > 0, sums, ops.ones_like(sums))
