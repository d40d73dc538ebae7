"""Attention maps, seen from outside: the list of blocks is walked and asked."""

import inspect
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
        ValueError: when the model is no list of layers.
    """
    if not hasattr(model, "steps"):
        raise ValueError(
            "`model` must be a model of keras_vitx, a Chain. "
            f"Received: {type(model).__name__} named {model.name!r}."
        )
    x = ops.convert_to_tensor(images, dtype="float32")
    for step in model.steps:
        asks = "return_attention_scores" in inspect.signature(step.call).parameters
        with without_gradients():
            if not asks:
                x = step(x)
                continue
            x, maps = step(x, training=False, return_attention_scores=True)
        yield step.name, ops.convert_to_numpy(ops.cast(maps, "float32"))


def class_attention(model: keras.Model, images: Any) -> dict[str, np.ndarray]:
    """Return what the class token attends to, laid out as the patches lie.

    CaiT, Section 5.1 and Figure 6. Of a block in which every token asks, the
    first row is taken.

    Args:
        model: A model with a class token.
        images: As in `attention_scores`.

    Returns:
        For each block that the class token is in, by name, the maps
        `(batch, heads, rows, columns)`.

    Raises:
        ValueError: when the model has no class token.
    """
    rows, columns = next(step.grid for step in model.steps if hasattr(step, "grid"))
    patches = rows * columns
    maps = {
        name: scores[:, :, 0, -patches:].reshape(*scores.shape[:2], rows, columns)
        for name, scores in attention_scores(model, images)
        if scores.shape[2] != patches
    }
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
