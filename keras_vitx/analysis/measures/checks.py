"""Checks of the arguments of measures."""

from typing import Any

import numpy as np

# A softmax in bfloat16 has row sums up to about .004 from 1.
ROUNDING = 0.02


def float_maps(maps: Any) -> np.ndarray:
    """Return attention maps as at least float32, so that sums do not run in half precision.

    Raises:
        ValueError: if there are fewer than two dimensions, `(..., queries, keys)`.
    """
    maps = np.asarray(maps)
    if maps.ndim < 2:
        raise ValueError(f"`maps` must be (..., queries, keys). Received: shape {maps.shape}.")
    return maps if maps.dtype == np.float64 else maps.astype("float32", copy=False)


def probabilities(maps: Any) -> np.ndarray:
    """Return attention maps as at least float32, with every row a distribution.

    Raises:
        ValueError: if an entry is negative, or a row does not sum to 1.
    """
    maps = float_maps(maps)
    sums = maps.sum(-1)
    if not (maps.min() >= 0 and np.abs(sums - 1).max() <= ROUNDING):
        raise ValueError(
            "`maps` must be probabilities: entries of at least 0, rows that sum to 1. Received: "
            f"entries from {maps.min():.3g}, row sums from {sums.min():.3g} to {sums.max():.3g}. "
            "Maps that were modified after the softmax (ReAttention, HeadMixing, Refinement) are "
            "not probabilities; take those of the softmax, `BlockTrace.softmax`."
        )
    return maps


def check_same_shape(names: str, shape: str, one: np.ndarray, other: np.ndarray) -> None:
    """Check that two arrays, whose names and shape are given in words, have the same shape.

    Raises:
        ValueError: if they have not.
    """
    if one.shape != other.shape:
        raise ValueError(
            f"{names} must have the same shape, {shape}. Received: {one.shape} and {other.shape}."
        )


def on_grid(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    """Return maps between patches as at least float32.

    Raises:
        ValueError: if they have not one query and one key per patch of the grid.
    """
    maps = float_maps(maps)
    patches = grid[0] * grid[1]
    if maps.shape[-2:] != (patches, patches):
        raise ValueError(
            f"`maps` must be (..., {patches}, {patches}), one query and one key per patch of the "
            f"grid {tuple(grid)}. Received: shape {maps.shape}. `patch_maps` leaves out the "
            "class token."
        )
    return maps
