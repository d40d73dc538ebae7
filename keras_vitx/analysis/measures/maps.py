"""Chosen parts of attention maps: of the class token, of one patch, means over images."""

from typing import Any

import numpy as np

from keras_vitx.analysis.measures.checks import float_maps


def scaled_by_maximum(maps: Any) -> np.ndarray:
    r"""Return maps `(..., queries, keys)` divided by their largest entry, $A / \max_{ij} |A_{ij}|$.

    DeepViT, Figure 6, of the mean over batch and heads. All entries of modified maps may be
    negative.
    """
    maps = float_maps(maps)
    return maps / np.maximum(np.abs(maps).max((-2, -1), keepdims=True), np.finfo("float32").tiny)


def class_rows(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    """Return the attention of the class token to each key, `(..., keys)`.

    Context Broadcasting, Figure 10; CaiT, Figure 6. The class token is first if it is a key. Raises
    a ValueError if all tokens are patches.
    """
    maps, patches = float_maps(maps), grid[0] * grid[1]
    if maps.shape[-2:] == (patches, patches):
        raise ValueError(
            f"The maps have no class token: their {patches} tokens are the patches of the grid "
            f"{tuple(grid)}."
        )
    return maps[..., 0, :]


def query_maps(maps: Any, grid: tuple[int, int], row: int, column: int) -> np.ndarray:
    """Return the attention of one patch to all patches, `(..., rows, columns)`.

    ConViT, Figures 3, 7, 16 and 17. Raises a ValueError for a patch off the grid or without a
    query.
    """
    maps, (rows, columns) = float_maps(maps), grid
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(
            f"The query patch must be on the grid {tuple(grid)}. Received: {(row, column)}."
        )
    patches = rows * columns
    if maps.shape[-2] < patches:
        raise ValueError(
            f"The maps have {maps.shape[-2]} queries, fewer than the {patches} patches: in class "
            "attention, the patches have none."
        )
    chosen = maps[..., maps.shape[-2] - patches + row * columns + column, -patches:]
    return chosen.reshape(*chosen.shape[:-1], rows, columns)
