"""Similarity of attention maps and of features between blocks (DeepViT)."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from keras_vitx.analysis.measures.checks import check_same_shape, float_maps

OVER = {"queries": -2, "heads": -3}


def map_cosines(
    maps: Any, others: Any, over: Literal["queries", "heads"] = "queries"
) -> np.ndarray:
    r"""Return the cosines between the maps of two blocks, `(..., heads, queries, keys)`.

    $$M^{p,q}_{h,t} = \frac{A^{p\,\top}_{h,:,t} A^q_{h,:,t}}
        {\|A^p_{h,:,t}\| \|A^q_{h,:,t}\|}$$
    over the queries, one value per head $h$ and key $t$ (DeepViT, Section 3, Equation 2);
    over the heads, one per query and key, as in the regularizer of the released code.
    """
    if over not in OVER:
        raise ValueError(f"`over` must be one of {tuple(OVER)}. Received: {over!r}.")
    maps, others = float_maps(maps), float_maps(others)
    check_same_shape("`maps` and `others`", "(..., heads, queries, keys)", maps, others)
    return (_unit(maps, OVER[over]) * _unit(others, OVER[over])).sum(OVER[over])


def map_similarity(
    maps: Any, others: Any, over: Literal["queries", "heads"] = "queries"
) -> np.ndarray:
    r"""Return the mean of `map_cosines`, the Similarity of DeepViT's Equation 6, `(...)`.

    Args:
        maps: As in `map_cosines`, like `others` and `over`.
        others: The same shape.
        over: `"queries"` or `"heads"`.

    Raises:
        ValueError: as in `map_cosines`.
    """
    return map_cosines(maps, others, over).mean((-2, -1))


def cross_layer_similarity(
    maps: Sequence[Any], threshold: float = 0.5, nearest: int | None = None
) -> np.ndarray:
    r"""Return the share of similar attention between all pairs of blocks.

    $$S(p, q) = \frac{1}{H T} \sum_{h,t} [M^{p,q}_{h,t} > \tau]$$
    with `map_cosines` $M$ (DeepViT, Appendix D, Equation 7; heat map in Figure 3a).

    Args:
        maps: The maps of each block, `(..., heads, queries, keys)`.
        threshold: $\tau$.
        nearest: Take for $\tau$ the mean of $M$ over all pairs of blocks that are at most
            this many blocks apart, as in the caption of Figure 3a (which gives no number).

    Returns:
        `(..., blocks, blocks)`. NaN for pairs of blocks with maps of different shapes, such
        as CaiT's class blocks and the others.
    """
    unit = [_unit(float_maps(one), -2) for one in maps]
    count = len(unit)
    cosines = {
        (p, q): np.einsum("...hqk,...hqk->...hk", unit[p], unit[q])
        for p in range(count)
        for q in range(p, count)
        if unit[p].shape == unit[q].shape
    }
    if nearest is not None:
        means = [m.mean() for (p, q), m in cosines.items() if 0 < q - p <= nearest]
        threshold = float(np.mean(means)) if means else threshold
    batch = unit[0].shape[:-3] if unit else ()
    shares = np.full((*batch, count, count), np.nan, "float32")
    for (p, q), cosine in cosines.items():
        shares[..., p, q] = shares[..., q, p] = (cosine > threshold).mean((-2, -1))
    return shares


def adjacent_similarity(similarity: Any) -> np.ndarray:
    """Return S of each block and the one before it, `(..., blocks)`; NaN for the first one."""
    similarity = np.asarray(similarity)
    beside = np.diagonal(similarity, offset=-1, axis1=-2, axis2=-1)
    return np.concatenate([np.full_like(beside[..., :1], np.nan), beside], -1)


def similar_blocks(similarity: Any, threshold: float = 0.8) -> np.ndarray:
    """Return which blocks are similar to the one before them.

    The share of similar blocks is the mean of the result (DeepViT, Appendix D; Figures 3b
    and 5).

    Args:
        similarity: `(..., blocks, blocks)`, as `cross_layer_similarity` returns it.
        threshold: S above which a block is similar.

    Returns:
        Booleans, `(..., blocks)`.
    """
    return adjacent_similarity(similarity) > threshold


def head_similarity(maps: Any) -> np.ndarray:
    r"""Return the similarity between the heads of one block, `(..., heads, heads)`.

    $$\frac1T \sum_t \cos(A_{g,:,t}, A_{h,:,t})$$
    for each pair of heads $g, h$ (DeepViT, Section 4.2, Figure 3c).
    """
    unit = _unit(float_maps(maps), -2)
    return np.einsum("...gqk,...hqk->...gh", unit, unit) / unit.shape[-1]


def mean_head_similarity(maps: Any) -> np.ndarray:
    """Return the mean of `head_similarity` over pairs of different heads, `(...)`.

    Args:
        maps: `(..., heads, queries, keys)`. The result is NaN for one head.
    """
    similarity = head_similarity(maps)
    heads = similarity.shape[-1]
    if heads == 1:
        return np.full(similarity.shape[:-2], np.nan, "float32")
    diagonal = np.trace(similarity, axis1=-2, axis2=-1)
    return (similarity.sum((-2, -1)) - diagonal) / (heads * (heads - 1))


def feature_similarity(tokens: Any, last: Any) -> np.ndarray:
    r"""Return the cosine between the tokens of two blocks, averaged over tokens.

    $$\frac1T \sum_t \cos(x^l_t, x^L_t)$$
    (DeepViT, Section 3, Figures 4 and 8b, with the output of the last block as $x^L$).

    Args:
        tokens: `(..., tokens, dim)`.
        last: The same shape.

    Returns:
        `(...)`.

    Raises:
        ValueError: if the shapes differ.
    """
    tokens, last = np.asarray(tokens, "float32"), np.asarray(last, "float32")
    check_same_shape("`tokens` and `last`", "(..., tokens, dim)", tokens, last)
    return (_unit(tokens, -1) * _unit(last, -1)).sum(-1).mean(-1)


def _unit(values, axis):
    """Divide by the norm along an axis; zeros stay zeros."""
    norms = np.sqrt(np.square(values).sum(axis, keepdims=True))
    return values / np.maximum(norms, 1e-12)
