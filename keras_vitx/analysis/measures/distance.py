"""How far attention reaches: nonlocality (ConViT) and relative distance (Context Broadcasting)."""

from typing import Any

import numpy as np

from keras_vitx.analysis.measures.checks import float_maps, on_grid


def patch_maps(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    """Return the part of maps between patches, without class and distillation tokens.

    Rows are not normalized again: what a query gives to the class token is left out. Raises a
    ValueError for fewer queries or keys than patches, as in class attention.
    """
    maps, patches = float_maps(maps), grid[0] * grid[1]
    if min(maps.shape[-2:]) < patches:
        raise ValueError(
            f"`maps` must have a query and a key for each patch of the grid {tuple(grid)}. "
            f"Received: shape {maps.shape}."
        )
    return maps[..., -patches:, -patches:]


def patch_distances(grid: tuple[int, int], unit_square: bool = False) -> np.ndarray:
    r"""Return the distances $\|\delta_{ij}\|$ between the centers of patches, row by row.

    The result is `(patches, patches)`. The unit is one patch; in the `unit_square`, the first patch
    is at 0 and the last one at 1 on each axis.
    """
    axes = (np.arange(count) / (max(count - 1, 1) if unit_square else 1) for count in grid)
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    return np.linalg.norm(places[:, None] - places, axis=-1).astype("float32")


def nonlocality(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    r"""Return how many patches away attention reaches.

    $$D = \frac1N \sum_{ij} A_{ij} \|\delta_{ij}\|$$
    with the distance in patches (ConViT, Section 4, Equation 8; Figures 5, 10, 13). The
    paper averages it over heads. The released code gives every block the patch embeddings in
    place of its own input: `keras_vitx.analysis.embedding_maps` has those maps.

    Args:
        maps: `(..., patches, patches)`, between patches only (`patch_maps`).
        grid: Rows and columns of the patches.

    Returns:
        `(...)`.

    Raises:
        ValueError: if the maps do not fit the grid.
    """
    maps = on_grid(maps, grid)
    return np.einsum("...qk,qk->...", maps, patch_distances(grid)) / maps.shape[-1]


def relative_distance(maps: Any, grid: tuple[int, int]) -> np.ndarray:
    r"""Return the mean distance of attention to other patches, on an image of size 1.

    $$\frac1N \sum_i \sum_{j \ne i} A_{ij} \|p_i - p_j\|$$
    with the coordinates $p$ scaled to $[0, 1]^2$ (Context Broadcasting, Section 3.5,
    Figure 5b). The formula is unreadable in our copy of the paper; this is our interpretation.

    Args:
        maps: `(..., patches, patches)`, between patches only (`patch_maps`).
        grid: Rows and columns of the patches.

    Returns:
        `(...)`.

    Raises:
        ValueError: if the maps do not fit the grid.
    """
    maps = on_grid(maps, grid)
    distances = patch_distances(grid, unit_square=True)
    return np.einsum("...qk,qk->...", maps, distances) / maps.shape[-1]


def attention_center(weights: Any) -> tuple[np.ndarray, np.ndarray]:
    r"""Return where ConViT's positional attention of each head is centered.

    The positional logits $v^\top r$ with $r = (\delta_x, \delta_y, |\delta|^2)$ are largest at
    $\delta = -(v_1, v_2) / (2 v_3)$ (ConViT, Section 2, Equations 4 and 5; the released code
    reports it). For $v_3 \ge 0$ there is no center, and the result is NaN.

    Args:
        weights: $v$ of all heads, `(3, heads)`: the kernel of `pos_proj`.

    Returns:
        The offsets (x, y) from the query in patches, `(heads, 2)`, and their lengths,
        `(heads,)`.
    """
    x, y, square = np.asarray(weights, "float32")
    peaked = np.where(square < 0, square, np.nan)
    center = -np.stack([x, y], -1) / (2 * peaked[:, None])
    return center, np.linalg.norm(center, axis=-1)
