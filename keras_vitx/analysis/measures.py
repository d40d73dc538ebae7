"""Measures of attention: functions from arrays to arrays.

Maps are `(..., queries, keys)`; sums are in float32, whatever the precision of the maps.
`tests/analysis/test_measures.py` holds the annotated shapes.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

__all__ = [
    "attention_center",
    "branch_ratio",
    "centered",
    "cross_layer_similarity",
    "effective_rank",
    "entropy",
    "feature_similarity",
    "map_similarity",
    "mean_head_similarity",
    "nonlocality",
    "normalized_cka",
    "outlier_tokens",
    "relative_distance",
    "similar_blocks",
    "sink_norm",
    "sink_share",
    "steepness",
]

Array = np.ndarray
Maps = Float[Array, "*batch queries keys"]
MapsOfPatches = Float[Array, "*batch patches patches"]
MapsOfHeads = Float[Array, "*batch heads queries keys"]
Tokens = Float[Array, "*batch tokens dim"]

ROUNDING, HALF_ROUNDING = 0.001, 0.01
"""Largest distance of a softmax's row sums from 1: in float32, and after four roundings to bfloat16
(a gated sum of two softmaxes), by 2**-9 each."""

# Density of attention.


def entropy(maps: Maps) -> Float[Array, "*batch queries"]:
    r"""Return the entropy of each row of attention, in nats.

    $$H_i = -\sum_j A_{ij} \log A_{ij}, \qquad 0 \log 0 = 0$$
    from 0 (one key) to $\log T$ (uniform over $T$ keys). Context Broadcasting, Section 2.1,
    Figures 3 and 5, averages it over heads and queries.

    Raises:
        ValueError: if the maps are not probabilities, such as after `ReAttention`.
    """
    maps = _probabilities(maps)
    logs = np.log(maps, out=np.zeros_like(maps), where=maps > 0)
    return -np.einsum("...k,...k->...", maps, logs)


def steepness(maps: Maps) -> Float[Array, "*batch queries"]:
    r"""Return the nuclear norm of the Jacobian of the softmax, per row of attention.

    $$\|J\|_* = \mathrm{tr}\,(\mathrm{diag}(a) - a a^\top) = 1 - \sum_j a_j^2,$$
    because $J$ is positive semi-definite. It is largest, $1 - 1/T$, for uniform attention
    (Context Broadcasting, Section 2.1).

    Raises:
        ValueError: if the maps are not probabilities.
    """
    maps = _probabilities(maps)
    return 1 - np.einsum("...k,...k->...", maps, maps)


class NotProbabilities(ValueError):
    """Maps whose rows are not distributions over the keys."""


def _probabilities(maps):
    maps = _float_maps(maps)
    sums = maps.sum(-1)
    distance = np.abs(sums - 1).max()
    is_near = distance <= ROUNDING or (distance <= HALF_ROUNDING and _fits_half(maps))
    if not (maps.min() >= 0 and is_near):
        raise NotProbabilities(
            "`maps` must be probabilities: entries of at least 0, rows that sum to 1. Received: "
            f"entries from {maps.min():.3g}, row sums from {sums.min():.3g} to {sums.max():.3g}. "
            "Maps that were modified after the softmax (ReAttention, HeadMixing, Refinement) are "
            "not probabilities; use those of the softmax, `BlockTrace.softmax`. For an attention "
            "without a softmax, omit the measure, or divide rows by their sum in a `Measure`."
        )
    return maps


def _fits_half(maps):
    """Return whether maps, which `trace` converts to float32, were computed in half precision."""
    if maps.dtype != np.float32:
        return False
    # bfloat16 is the upper half of float32.
    return not (maps.view("uint32") & 0xFFFF).any() or (maps == maps.astype("float16")).all()


def _float_maps(maps):
    maps = np.asarray(maps)
    return maps if maps.dtype == np.float64 else maps.astype("float32", copy=False)


# Sinks: keys that take much of the attention of all queries.


def sink_share(maps: Maps) -> Float[Array, "*batch"]:
    r"""Return the share of attention on the most attended key, per head.

    $$\max_j \sum_i |A_{ij}| \,/\, \sum_{ij} |A_{ij}|$$
    from $1/T$ to 1 over $T$ keys, for maps of any sign and row sums. A head with a large share has
    a sink. With a small `sink_norm` of its values the sink is a way to attend nothing; with a small
    `effective_rank` of the head's output it broadcasts one message to all tokens (Fesser et al.,
    2026, arXiv 2606.08105, who tell the two kinds apart so).
    """
    received = np.abs(_float_maps(maps)).sum(-2)
    return received.max(-1) / np.maximum(received.sum(-1), np.finfo("float32").tiny)


def sink_norm(
    maps: MapsOfHeads, tokens: Float[Array, "*batch heads_or_1 keys dim"]
) -> Float[Array, "*batch heads"]:
    r"""Return the norm of a token, or of its value, at the most attended key $s$, per head.

    $$\|x_s\| \,/\, \frac1T \sum_j \|x_j\|, \qquad s = \arg\max_j \sum_i |A_{ij}|$$

    Args:
        maps: `(..., heads, queries, keys)`.
        tokens: What the keys hold, for each head, or the same for all: `(..., heads, keys, dim)` or
            `(..., 1, keys, dim)`.
    """
    maps = _float_maps(maps)
    sinks = np.abs(maps).sum(-2).argmax(-1)[..., None]
    norms = np.linalg.norm(np.asarray(tokens, "float32"), axis=-1)
    norms = np.broadcast_to(norms, (*maps.shape[:-2], maps.shape[-1]))
    return np.take_along_axis(norms, sinks, -1)[..., 0] / norms.mean(-1)


def effective_rank(features: Tokens) -> Float[Array, "*batch"]:
    r"""Return the effective rank of the output of a head (Roy and Vetterli, 2007).

    $$\exp\Bigl(-\sum_k p_k \log p_k\Bigr), \qquad p_k = \sigma_k / \sum_l \sigma_l$$
    with the singular values $\sigma$ of $A V$: from 1, all tokens get multiples of one vector, to
    the size of the head.

    Returns:
        `(...)`; NaN for features of zeros.
    """
    features = np.asarray(features, "float64")
    squares = np.linalg.eigvalsh(features.swapaxes(-1, -2) @ features)
    values = np.sqrt(squares.clip(0))
    with np.errstate(invalid="ignore"):
        p = values / values.sum(-1, keepdims=True)
    return np.exp(-(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1))


def outlier_tokens(tokens: Tokens, factor: float = 3.0) -> Int[Array, "*batch"]:
    r"""Return the number of tokens of outlying norm, $\|x_t\| > c\,\mathrm{median}_s \|x_s\|$.

    Darcet et al., 2023, Section 2.1, find such patches in large networks, where they read the limit
    from a histogram: 150 for DINOv2-g. A multiple of the median is our choice.

    Args:
        tokens: `(..., tokens, dim)`, patches.
        factor: $c$.
    """
    norms = np.linalg.norm(np.asarray(tokens, "float32"), axis=-1)
    return (norms > factor * np.median(norms, axis=-1, keepdims=True)).sum(-1)


# How far attention reaches.


def nonlocality(maps: MapsOfPatches, grid: tuple[int, int]) -> Float[Array, "*batch"]:
    r"""Return the mean distance of attention, in patches.

    $$D = \frac1N \sum_{ij} A_{ij} \|\delta_{ij}\|$$
    with the distance in patches (ConViT, Section 4, Equation 8; Figures 5, 10, 13). The paper
    averages it over heads. The released code replaces the input of every block by the patch
    embeddings: `keras_vitx.analysis.embedding_maps` returns those maps.

    Args:
        maps: `(..., patches, patches)`, between patches only: without the class token.
        grid: Rows and columns of the patches.
    """
    return _mean_distance(maps, grid, np.indices(grid))


def relative_distance(maps: MapsOfPatches, grid: tuple[int, int]) -> Float[Array, "*batch"]:
    r"""Return the mean distance of attention to other patches, on an image of size 1.

    $$\frac1N \sum_i \sum_{j \ne i} A_{ij} \|p_i - p_j\|$$
    with the coordinates $p$ scaled to $[0, 1]^2$ (Context Broadcasting, Section 3.5,
    Figure 5b). The formula is illegible in our copy of the paper; this is an interpretation.

    Args:
        maps: `(..., patches, patches)`, between patches only: without the class token.
        grid: Rows and columns of the patches.
    """
    last = np.maximum(np.array(grid) - 1, 1)[:, None, None]
    return _mean_distance(maps, grid, np.indices(grid) / last)


def _mean_distance(maps, grid, coordinates):
    """Return the mean over queries of the distance to the keys; coordinates `(2, *grid)`."""
    maps, patches = _float_maps(maps), grid[0] * grid[1]
    centers = coordinates.reshape(2, -1).T
    distances = np.linalg.norm(centers[:, None] - centers, axis=-1).astype("float32")
    return np.einsum("...qk,qk->...", maps, distances) / patches


def attention_center(
    weights: Float[Array, "3 heads"],
) -> tuple[Float[Array, "heads 2"], Float[Array, " heads"]]:
    r"""Return the center of ConViT's positional attention of each head.

    The positional logits $v^\top r$ with $r = (\delta_x, \delta_y, |\delta|^2)$ are largest at
    $\delta = -(v_1, v_2) / (2 v_3)$ (ConViT, Section 2, Equations 4 and 5; the released code
    reports it). For $v_3 \ge 0$ there is no center, and the result is NaN.

    Args:
        weights: $v$ of all heads, `(3, heads)`: the kernel of `pos_proj`.

    Returns:
        The offsets (x, y) from the query in patches, `(heads, 2)`, and their lengths, `(heads,)`.
    """
    x, y, square = np.asarray(weights, "float32")
    peaked = np.where(square < 0, square, np.nan)
    center = -np.stack([x, y], -1) / (2 * peaked[:, None])
    return center, np.linalg.norm(center, axis=-1)


# How similar maps, heads and features are.


def centered(maps: Maps) -> Maps:
    r"""Return maps minus the mean of each row, $A_{ij} - \frac1T \sum_k A_{ik}$.

    The cosines below are near 1 for any two maps near the uniform one, as those of random weights
    are. Centered maps are compared by how they differ from it.
    """
    maps = _float_maps(maps)
    return maps - maps.mean(-1, keepdims=True)


def map_cosines(
    maps: MapsOfHeads, others: MapsOfHeads, over: Literal["queries", "heads"] = "queries"
) -> Float[Array, "*batch heads_or_queries keys"]:
    """Return the cosines between the maps of two blocks, of which `map_similarity` is the mean."""
    maps, others = _float_maps(maps), _float_maps(others)
    axis = {"queries": -2, "heads": -3}[over]
    return (_unit(maps, axis) * _unit(others, axis)).sum(axis)


def map_similarity(
    maps: MapsOfHeads, others: MapsOfHeads, over: Literal["queries", "heads"] = "queries"
) -> Float[Array, "*batch"]:
    r"""Return the mean cosine between the maps of two blocks (DeepViT, Equations 2 and 6).

    $$\frac{1}{HT} \sum_{h,t} \cos(A^p_{h,:,t}, A^q_{h,:,t})$$

    Args:
        maps: The maps of a block, `(..., heads, queries, keys)`.
        others: Those of another block, of the same shape.
        over: `"queries"`: one cosine per head $h$ and key $t$; `"heads"`: one per query and key,
            as in the regularizer of the released code.
    """
    return map_cosines(maps, others, over).mean((-2, -1))


def cross_layer_similarity(
    maps: Sequence[Float[Array, "..."]], threshold: float = 0.5, nearest: int | None = None
) -> Float[Array, "*batch blocks blocks"]:
    r"""Return the fraction of similar attention between all pairs of blocks.

    $$S(p, q) = \frac{1}{H T} \sum_{h,t} [M^{p,q}_{h,t} > \tau]$$
    with the cosines $M$ over queries (DeepViT, Equation 2; Appendix D, Equation 7; heat map in
    Figure 3a).

    Args:
        maps: The maps of each block, `(..., heads, queries, keys)`.
        threshold: $\tau$.
        nearest: If set, $\tau$ is the mean of $M$ over all pairs of blocks that are at most
            this many blocks apart, as in the caption of Figure 3a (without a number).

    Returns:
        `(..., blocks, blocks)`. NaN for pairs of blocks with maps of different shapes, such
        as CaiT's class blocks and the others.
    """
    unit = [_unit(_float_maps(each), -2) for each in maps]
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
    fractions = np.full((*batch, count, count), np.nan, "float32")
    for (p, q), cosine in cosines.items():
        fractions[..., p, q] = fractions[..., q, p] = (cosine > threshold).mean((-2, -1))
    return fractions


def similar_blocks(
    similarity: Float[Array, "*batch blocks blocks"], threshold: float = 0.8
) -> Bool[Array, "*batch blocks"]:
    """Return which blocks are similar to the previous one; False for the first.

    The fraction of similar blocks is the mean of the result (DeepViT, Appendix D; Figures 3b and
    5).

    Args:
        similarity: `(..., blocks, blocks)`, from `cross_layer_similarity`.
        threshold: The fraction above which a block is similar.
    """
    similar = np.diagonal(np.asarray(similarity), offset=-1, axis1=-2, axis2=-1) > threshold
    return np.concatenate([np.zeros((*similar.shape[:-1], 1), bool), similar], -1)


def mean_head_similarity(maps: MapsOfHeads) -> Float[Array, "*batch"]:
    r"""Return the mean similarity of pairs of different heads $g, h$ of one block, `(...)`.

    $$\frac1T \sum_t \cos(A_{g,:,t}, A_{h,:,t})$$
    (DeepViT, Section 4.2, Figure 3c). It is NaN for one head.
    """
    unit = _unit(_float_maps(maps), -2)
    *batch, heads, _, keys = unit.shape
    if heads == 1:
        return np.full(batch, np.nan, "float32")
    similarity = np.einsum("...gqk,...hqk->...gh", unit, unit) / keys
    diagonal = np.trace(similarity, axis1=-2, axis2=-1)
    return (similarity.sum((-2, -1)) - diagonal) / (heads * (heads - 1))


def feature_similarity(tokens: Tokens, last: Tokens) -> Float[Array, "*batch"]:
    r"""Return the cosine between the tokens of two blocks, averaged over tokens.

    $$\frac1T \sum_t \cos(x^l_t, x^L_t)$$
    (DeepViT, Section 3, Figures 4 and 8b, with the output of the last block as $x^L$).
    """
    tokens, last = np.asarray(tokens, "float32"), np.asarray(last, "float32")
    return (_unit(tokens, -1) * _unit(last, -1)).sum(-1).mean(-1)


def linear_cka(x: Float[Array, "images ..."], y: Float[Array, "images ..."]) -> float:
    """Return the linear centered kernel alignment of features `(images, ...)`, 0 to 1.

    It is NaN if one set is the same for all images.
    """
    x, y = np.asarray(x, "float64"), np.asarray(y, "float64")

    def products(features):
        features = features.reshape(len(features), -1)
        features = features - features.mean(0)
        return features @ features.T

    # ||Y'X||² = <XX', YY'>, from the (images, images) products.
    x, y = products(x), products(y)
    norms = np.linalg.norm(x) * np.linalg.norm(y)
    return float((x * y).sum() / norms) if norms else float("nan")


def normalized_cka(
    features: Sequence[Float[Array, "images ..."]], last: Float[Array, "images ..."] | None = None
) -> Float[Array, " blocks"]:
    r"""Return the similarity of the features of each block to the final ones.

    $$F_k = \mathrm{CKA}(f_k, f_\text{out}) / \mathrm{CKA}(f_\text{in}, f_\text{out})$$
    with $f_\text{in}$ the output of the first block (Refiner, Appendix A.4, Equation 2;
    Figures 2 and 4), and the linear centered kernel alignment
    $\mathrm{CKA}(X, Y) = \|Y^\top X\|_F^2 / (\|X^\top X\|_F \, \|Y^\top Y\|_F)$ of centered
    columns (Kornblith et al., 2019). The paper averages over ten random batches of 32 images,
    and does not say whether tokens are flattened or pooled: the shape of `features` decides.

    Args:
        features: The features after each block, `(images, ...)`: tokens, which are flattened, or
            their means.
        last: The final features $f_\text{out}$; None means those of the last block.

    Raises:
        ValueError: if the numbers of images differ, or are below two.
    """
    last = features[-1] if last is None else last
    values = np.array([linear_cka(each, last) for each in features])
    return values / values[0]


def _unit(values, axis):
    """Divide by the norm along an axis; zeros stay zeros."""
    norms = np.sqrt(np.square(values).sum(axis, keepdims=True))
    return values / np.maximum(norms, 1e-12)


# Residual branches and learned scales.


def branch_ratio(branch: Tokens, inputs: Tokens) -> Float[Array, "*batch"]:
    r"""Return the norm of a residual branch relative to that of its input, the mean over tokens.

    $$\|R_l(x)\|_2 / \|x\|_2$$
    with LayerScale included in $R_l$ (CaiT, Section 4.1.3, Figure 4). The paper does not say
    whether the norms are those of a token or of all.
    """
    norm, input_norm = (np.linalg.norm(np.asarray(x, "float32"), axis=-1) for x in (branch, inputs))
    return (norm / np.maximum(input_norm, np.finfo("float32").tiny)).mean(-1)


def scale_summary(scale: Float[Array, " dim"]) -> tuple[float, float]:
    r"""Return the mean of $\Lambda$, `(dim,)`, of $\mathrm{CB_S}$, and its .1 over its .9 quantile.

    Context Broadcasting, Section 3.5, Figure 6. The quantiles are our choice.
    """
    scale = np.asarray(scale, "float32")
    below, above = np.quantile(scale, [0.1, 0.9])
    return float(scale.mean()), float(below / above) if above else float("nan")
