"""Checks of the arguments of measures."""

from typing import Any

import numpy as np

# A softmax in bfloat16 has row sums up to about .004 from 1.
ROUNDING = 0.02


def float_maps(maps: Any) -> np.ndarray:
    """Return maps as at least float32, for sums; raise a ValueError below two dimensions."""
    maps = np.asarray(maps)
    if maps.ndim < 2:
        raise ValueError(f"`maps` must be (..., queries, keys). Received: shape {maps.shape}.")
    return maps if maps.dtype == np.float64 else maps.astype("float32", copy=False)


def probabilities(maps: Any) -> np.ndarray:
    """Return maps as at least float32; raise a ValueError unless every row is a distribution."""
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
    """Raise a ValueError, with the names and shape in words, if two arrays differ in shape."""
    if one.shape != other.shape:
        raise ValueError(
            f"{names} must have the same shape, {shape}. Received: {one.shape} and {other.shape}."
        )


def on_grid(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    """Return maps as at least float32; raise a ValueError unless all tokens are patches."""
    maps = float_maps(maps)
    patches = grid[0] * grid[1]
    if maps.shape[-2:] != (patches, patches):
        raise ValueError(
            f"`maps` must be (..., {patches}, {patches}), one query and one key per patch of the "
            f"grid {tuple(grid)}. Received: shape {maps.shape}. `patch_maps` leaves out the "
            "class token."
        )
    return maps
