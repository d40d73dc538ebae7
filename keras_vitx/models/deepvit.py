"""DeepViT: towards deeper vision transformers (Zhou et al., 2021, arXiv 2103.11886)."""

from numbers import Real

from keras_vitx.layers import (
    MLP,
    Attention,
    ConvStem,
    DeepAttention,
    PatchEmbedding,
    ReAttention,
    SharedAttention,
)
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_counts, check_heads, patch_grid
from keras_vitx.models.parts import Layers, Stack, Top, class_token_first, similarity_weights
from keras_vitx.preprocessing import HALVES


@family(HALVES.but(crop_ratio=0.9))
def DeepViT(
    image_shape: tuple[int, int, int],
    top: Top,
    stack: Stack,
    dim: int,
    depth: int,
    num_heads: int,
    re_attention_depth: int | None = None,
    mlp_ratio: float = 3.0,
    conv_stem: bool = False,
    residual_scale: float = 1.0,
    map_scale: float | str = 1.0,
    normalize_maps: bool = True,
    patch_size: int = 16,
    shared_depth: int = 0,
    similarity: float = 0.0,
    similarity_depth: int = 0,
    similarity_over: str = "heads",
) -> Layers:
    """Re-attention makes new maps from all heads, so that deep blocks differ.

    A plain transformer whose last blocks mix and normalise their maps (Section 4.2).

    Args:
        dim: Width of a token.
        depth: Number of blocks.
        num_heads: Number of heads; it must divide `dim`.
        re_attention_depth: Number of blocks, the last ones, with re-attention
            (Figure 9); None is all.
        mlp_ratio: Hidden width of an MLP over `dim`.
        conv_stem: Whether three convolutions embed the patches (Section 5.4).
        residual_scale: s in x + f(norm(s x)) / s; 0.5 in the released S and L.
        map_scale: What the new maps are multiplied by; `"head"` is one over the root
            of the size of a head, in the released S alone.
        normalize_maps: Whether a BatchNormalization (`var_norm` in files) follows the mix
            of heads. The released files of 24B and 32B may lack it.
        patch_size: Side of a patch in pixels.
        shared_depth: Number of blocks, the last ones, that reuse the map of the one
            before them, mixed and normalised anew (Table 3, Appendix A, Equation 5).
        similarity: Weight in the loss of the mean similarity between the maps of
            consecutive blocks (Appendix A, Equation 6). The released loss has 0.1, that
            is lambda = 0.1 / similarity_depth for each pair.
        similarity_depth: Number of blocks, from the first one on, that are compared with
            the block after them.
        similarity_over: Axis of the cosine: `"heads"` as in the released loss, or
            `"queries"` as in Equation 2.
    """
    grid = patch_grid(image_shape, patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    re_attention_depth = depth if re_attention_depth is None else re_attention_depth
    depths = {
        "re_attention_depth": (re_attention_depth, depth),
        "shared_depth": (shared_depth, depth - 1),
    }
    for name, (count, most) in depths.items():
        check_counts(least=0, **{name: count})
        if count > most:
            raise ValueError(
                f"`{name}` must be at most {most} in a network of depth={depth}. Received: {count}."
            )
    if map_scale != "head" and not isinstance(map_scale, Real):
        raise ValueError(f"`map_scale` must be a number or 'head'. Received: {map_scale!r}.")
    scale = (dim // num_heads) ** -0.5 if map_scale == "head" else map_scale

    def own_attention(index: int):
        if index >= depth - shared_depth:
            re_attention = ReAttention(scale, normalize_maps, name="re_attention")
            return SharedAttention(num_heads, on_weights=[re_attention])
        if index >= depth - re_attention_depth:
            return DeepAttention(num_heads, scale, normalize_maps)
        return Attention(num_heads)

    blocks = stack(
        own_attention,
        lambda index: MLP(mlp_ratio, dropout=stack.dropout),
        stack.rates(depth),
        residual_scale=residual_scale,
        **similarity_weights(depth, similarity, similarity_depth, similarity_over),
    )
    stem = ConvStem if conv_stem else PatchEmbedding
    return class_token_first(
        stem(dim, patch_size=patch_size, name="patch_embed"), grid, blocks, top(1)
    )
