"""Attention maps of all blocks, those of the class token, and saliency."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.analysis.trace import blocks_of, trace


def attention_scores(model: keras.Model, images: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over the attention maps of all blocks, in order.

    These are the maps that multiply the values in the forward pass. Only the maps of one
    block are in memory at a time.

    Args:
        model: A model of this package, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model
            (`keras_vitx.preprocess_input`).

    Returns:
        An iterator over pairs of the block name and its maps, float32
        `(batch, heads, queries, keys)`. Blocks without attention are skipped.

    Raises:
        ValueError: as in `trace`, and if the model has no attention.
    """
    traced = trace(model, images)
    if not any(block.has_maps for block in blocks_of(model)):
        raise ValueError(f"The model {model.name!r} has no attention maps.")
    return _maps(traced)


def _maps(traced):
    for block in traced:
        if block.maps is not None:
            yield block.name, block.maps
        # Freed before the next block runs.
        del block


def class_attention(model: keras.Model, images: Any) -> dict[str, np.ndarray]:
    """Return the attention of the class token to each patch, arranged on the grid.

    CaiT, Section 5.1 and Figure 6. In a block with several queries, the class token is the
    first one. The grid shrinks between stages if patches are pooled (PiT).

    Args:
        model: A model with a class token, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.

    Returns:
        Maps `(batch, heads, rows, columns)` of each block that contains the class token, by
        block name.

    Raises:
        ValueError: as in `trace`, and if the model has no attention or no class token.
    """
    grids = {tokens.name: tokens.grid for tokens in getattr(model, "token_layout", ())}
    maps = {}
    for name, scores in attention_scores(model, images):
        rows, columns = grids[name] or (0, 0)
        patches = rows * columns
        if patches and scores.shape[2:] != (patches, patches):
            row = scores[:, :, 0, -patches:]
            maps[name] = row.reshape(*scores.shape[:2], rows, columns).copy()
    if not maps:
        raise ValueError(f"The model {model.name!r} has no class token.")
    return maps


def saliency(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the attention that each pixel receives, scaled to 0..1 per image.

    The mean over heads, bicubically upsampled, then (x - min) / (max - min): CaiT, Section 5.2.

    Args:
        maps: `(batch, heads, rows, columns)`, e.g. a value of `class_attention`.
        size: Height and width of the result, in pixels.

    Returns:
        `(batch, height, width)`.
    """
    mean = maps.mean(axis=1)[..., None]
    grown = ops.convert_to_numpy(
        ops.image.resize(mean, size, interpolation="bicubic", data_format="channels_last")
    )[..., 0]
    low = grown.min(axis=(1, 2), keepdims=True)
    high = grown.max(axis=(1, 2), keepdims=True)
    return (grown - low) / np.maximum(high - low, np.finfo("float32").tiny)
