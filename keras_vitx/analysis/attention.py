"""Attention maps, seen from outside: the list of blocks is walked and asked."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import without_gradients


def attention_scores(model: keras.Model, images: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the attention maps of every block, from the first to the last.

    The maps are those that multiplied the values in the forward pass. One
    block's maps are in memory at a time.

    Args:
        model: A model of the zoo.
        images: `(batch, height, width, channels)`, made ready for the model
            (`keras_vitx.preprocess_input`).

    Yields:
        The name of a block and its maps, float32 `(batch, heads, queries, keys)`.

    Raises:
        ValueError: when the model is no list of layers, or has no attention.
    """
    if not hasattr(model, "steps"):
        raise ValueError(
            "`model` must be a model of keras_vitx, a Chain. "
            f"Received: {type(model).__name__} named {model.name!r}."
        )
    if not any(map(_has_maps, model.steps)):
        raise ValueError(f"The model {model.name!r} has no attention, and so no attention maps.")
    x = ops.convert_to_tensor(images, dtype="float32")
    for step in model.steps:
        with without_gradients():
            if not _has_maps(step):
                x = step(x)
                continue
            # Of blocks that hand maps on, x is a pair: tokens, and what was handed on.
            x, maps = step(x, training=False, return_attention_scores=True)
        maps = ops.convert_to_numpy(ops.cast(maps, "float32"))
        yield step.name, maps
        del maps


def _has_maps(step):
    return getattr(step, "has_maps", False)


def class_attention(model: keras.Model, images: Any) -> dict[str, np.ndarray]:
    """Return what the class token attends to, laid out as the patches lie.

    CaiT, Section 5.1 and Figure 6. Of a block in which every token asks, the
    first row is taken. Where tokens become fewer from stage to stage (PiT), so do
    rows and columns.

    Args:
        model: A model with a class token.
        images: As in `attention_scores`.

    Returns:
        For each block that the class token is in, by name, the maps
        `(batch, heads, rows, columns)`.

    Raises:
        ValueError: when the model has no class token.
    """
    grids, grid = {}, (0, 0)
    for step in getattr(model, "steps", ()):
        # What makes patches fewer has the grid that it takes and the one that it gives.
        grid = getattr(step, "new_grid", getattr(step, "grid", grid))
        grids[step.name] = grid
    maps = {}
    for name, scores in attention_scores(model, images):
        rows, columns = grids[name]
        patches = rows * columns
        if patches and scores.shape[2:] != (patches, patches):
            row = scores[:, :, 0, -patches:]
            maps[name] = row.reshape(*scores.shape[:2], rows, columns).copy()
    if not maps:
        raise ValueError(f"The model {model.name!r} has no class token.")
    return maps


def saliency(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return how strongly each pixel is attended to, from 0 to 1 in each image.

    The mean over heads, upsampled, then (x - min) / (max - min): CaiT, Section 5.2.

    Args:
        maps: `(batch, heads, rows, columns)`, e.g. of `class_attention`.
        size: Height and width of the result in pixels.

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
