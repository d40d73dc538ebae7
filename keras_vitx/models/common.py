"""Layers, and checks of arguments, that several families have in common."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.checks import check_counts
from keras_vitx.layers import ClassToken


def class_tokens(distillation_token: bool = False) -> list[keras.layers.Layer]:
    """Return the layers that prepend the class token, followed by the distillation token if any."""
    distillation = [ClassToken(name="dist_token")] if distillation_token else []
    return [*distillation, ClassToken(name="cls_token")]


def last_norm() -> keras.layers.Layer:
    """Return the norm after the last block."""
    return keras.layers.LayerNormalization(epsilon=1e-6, name="norm")


def check_heads(dim: int, num_heads: int) -> None:
    """Raise a ValueError unless `num_heads` divides `dim`."""
    check_counts(dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(
            f"`num_heads` must divide `dim`. Received: num_heads={num_heads}, dim={dim}."
        )


def scale_factor(scale: Any, shape: Sequence[int]) -> int:
    """Return by how much the sides of a map grow or shrink: `scale` or its inverse.

    Raises a ValueError if `scale` is no power of two, or nothing would be left of the map.
    """
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool) and scale > 0
    factor = round(max(scale, 1 / scale)) if is_number else 0
    if not is_number or max(scale, 1 / scale) != factor or factor & (factor - 1):
        raise ValueError(f"`scales` must be powers of two, such as 4 or 0.5. Received: {scale!r}.")
    if scale < 1 and min(shape) < factor:
        raise ValueError(
            f"`scales` must leave at least one position of a map of {shape[0]} x {shape[1]}. "
            f"Received: {scale!r}."
        )
    return factor
