"""DeepViT: towards deeper vision transformers (Zhou et al., 2021, arXiv 2103.11886)."""

from keras_vitx.checks import check, check_counts
from keras_vitx.layers import (
    MLP,
    Attention,
    ConvStem,
    DeepAttention,
    PatchEmbedding,
    PositionEmbedding,
    ReAttention,
    SharedAttention,
)
from keras_vitx.models.arguments import Layers, ModelArguments, Similarity
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    replacements=(("/re_attention/", "/"),),
    rows=(Row(r"(.+)/reatten_matrix/kernel", r"\1/reatten_matrix/weight", "mixing"),),
)


@family(IMAGENET_INCEPTION.replace(crop_ratio=0.9), CHECKPOINT)
def DeepViT(
    args: ModelArguments,
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
    """DeepViT: re-attention, which keeps the maps of deep blocks diverse.

    A plain transformer whose last blocks mix their maps over heads and normalize them
    (Section 4.2). The crop ratio is 0.9 at 224 x 224; the released L at 384 x 384 uses 1.0.

        >>> kv.DeepViT(dim=8, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth, num_heads: As in `ViT`.
        re_attention_depth: Number of blocks, the last ones, with re-attention
            (Figure 9); None means all.
        mlp_ratio: Hidden width of an MLP divided by `dim`.
        conv_stem: Whether three convolutions embed the patches (Section 5.4).
        residual_scale: s in x + f(norm(s x)) / s; 0.5 in the released S and L.
        map_scale: Factor of the mixed maps; `"head"` means 1 / sqrt(head size), as in the
            released S only.
        normalize_maps: Whether a BatchNormalization (`var_norm` in checkpoints) follows the
            mixing of heads. The released files of 24B and 32B may lack it.
        patch_size: Side of a patch in pixels.
        shared_depth: Number of blocks, the last ones, that reuse the maps of the previous
            block, mixed and normalized again (Table 3, Appendix A, Equation 5).
        similarity: Weight in the loss of the mean similarity between the maps of
            consecutive blocks (Appendix A, Equation 6). The released loss uses 0.1, i.e.
            lambda = 0.1 / similarity_depth per pair.
        similarity_depth: Number of blocks, from the first one on, whose maps are compared
            with those of the next block.
        similarity_over: Axis of the cosine similarity: `"heads"` as in the released loss, or
            `"queries"` as in Equation 2.
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    re_attention_depth = depth if re_attention_depth is None else re_attention_depth
    check_counts(minimum=0, re_attention_depth=re_attention_depth, shared_depth=shared_depth)
    rule = f"`re_attention_depth` must be at most depth={depth}."
    check(re_attention_depth <= depth, rule, re_attention_depth)
    check(shared_depth < depth, f"`shared_depth` must be below depth={depth}.", shared_depth)
    scale = (dim // num_heads) ** -0.5 if map_scale == "head" else map_scale

    def own_attention(index: int):
        if index >= depth - shared_depth:
            re_attention = ReAttention(scale, normalize_maps, name="re_attention")
            return SharedAttention(num_heads, on_weights=[re_attention])
        if index >= depth - re_attention_depth:
            return DeepAttention(num_heads, scale, normalize_maps)
        return Attention(num_heads)

    stem = ConvStem if conv_stem else PatchEmbedding
    return [
        stem(dim, patch_size=patch_size, name="patch_embed"),
        *class_tokens(),
        PositionEmbedding(grid, 1, name="pos_embed"),
        *args.blocks(
            own_attention,
            lambda index: MLP(mlp_ratio, dropout=args.dropout),
            depth,
            similarity=Similarity(similarity, similarity_depth, similarity_over),
            residual_scale=residual_scale,
        ),
        last_norm(),
        *args.head(),
    ]
