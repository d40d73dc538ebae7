"""Refined-ViT: refiner, attention expansion and local maps (Zhou et al., 2021, arXiv 2106.03714)."""

from typing import Literal

from keras_vitx.checks import check, check_argument, check_counts
from keras_vitx.layers import (
    MLP,
    AccumulatingAttention,
    Attention,
    ConvStem,
    LayerScale,
    PatchEmbedding,
    PositionEmbedding,
    RefinedAttention,
    ResidualRefinement,
    SharedAttention,
)
from keras_vitx.models.arguments import Layers, ModelArguments, Similarity
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    replacements=(
        ("/refinement/adapt_bn/", "/adapt_bn/"),
        ("/refinement/", "/DLA/"),
        # The values of blocks without queries and keys have the same name.
        ("/attn/v/", "/attn/qkv/"),
    ),
    rows=(
        Row(r"(.+)/(conv_exp|conv_pro)/kernel", r"\1/\2/weight", "mixing"),
        Row(r"(.+)/depth_sep_conv/kernel", r"\1/depth_sep_conv/weight"),
        Row(r"(.+)/scale_channel/gamma", r"\1/scale_channel"),
    ),
)


@family(IMAGENET_INCEPTION.replace(crop_ratio=0.9), CHECKPOINT)
def RefinedViT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    expansion: int = 3,
    kernel_size: int = 3,
    mlp_ratio: float = 3.0,
    dense_head: bool = False,
    patch_size: int = 16,
    refiner: str | None = "released",
    shared_depth: int = 1,
    reduction: bool = True,
    constraint: str | None = None,
    residual_scale: float = 0.5,
    layer_scale: float | None = 1e-5,
    conv_stem: bool = True,
    similarity: float = 0.0,
    similarity_depth: int = 0,
    similarity_over: str = "heads",
    similarity_of: str = "emitted",
) -> Layers:
    """Refined-ViT: maps are expanded to more heads, convolved, reduced, and shared by blocks.

    A block that computes maps is followed by `shared_depth` blocks that reuse them. In
    the released models, a block of the first kind adds the shared maps to its softmax
    (`AccumulatingAttention`), and one of the second kind refines them
    (`ResidualRefinement`). In the paper's text (Section 3.4, Appendix B.4), the first kind
    refines its own maps linearly, and the second uses them unchanged.

        >>> kv.RefinedViT(dim=8, depth=3, num_heads=2, expansion=2,
        ... patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth, num_heads: As in `ViT`.
        expansion: Number of maps per head inside the refiner, at least 1 (Table 1).
        kernel_size: Side of the refiner's convolution, odd (Figure 6).
        mlp_ratio: Hidden width of an MLP divided by `dim`.
        dense_head: Whether the patches are also classified (`DenseHead`).
        patch_size: Side of a patch in pixels.
        refiner: `"released"`, `"paper"`, or None to share maps without refining them
            (Table 13, "SA").
        shared_depth: Number of blocks that reuse the maps of a block (Table 13).
        reduction: Whether the paper's refiner reduces the maps to the number of heads
            (Table 3).
        constraint: Axes of the paper's convolution, as in `LocalMapConvolution`
            (Table 4).
        residual_scale: s in x + f(norm(s x)) / s.
        layer_scale: Initial value of LayerScale inside each MLP; None disables it.
        conv_stem: Whether three convolutions come before the projection of patches, as released
            (Table 11, "Conv-stem"; the paper gives no number).
        similarity: Weight in the loss of the mean similarity between the maps of
            consecutive blocks, as in `DeepViT`. The released code has 0.1, over 2 pairs in the
            standard recipe and over 12 in the advanced one.
        similarity_depth: Number of blocks, from the first one on, whose maps are compared
            with those of the next block.
        similarity_over, similarity_of: As in `SharedMapsBlock`. With `"emitted"`, as released, the
            pairs within a group of blocks that share maps are identical and add a constant.
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth, expansion=expansion, kernel_size=kernel_size)
    check_counts(minimum=0, shared_depth=shared_depth)
    check_argument("refiner", refiner, Literal["released", "paper"] | None)
    of_paper = refiner != "released" or (reduction and constraint is None)
    rule = "`reduction` and `constraint` must be left out unless refiner is 'paper'."
    check(of_paper, rule, (reduction, constraint))
    size = dim // num_heads

    def own_attention(index: int):
        computes = index % (1 + shared_depth) == 0
        if refiner == "released":
            if not computes:
                layer = ResidualRefinement(expansion, kernel_size, size**-0.5, name="refinement")
                return SharedAttention(num_heads, on_weights=[layer])
            return AccumulatingAttention(num_heads) if index else Attention(num_heads)
        if refiner == "paper":
            if computes:
                return RefinedAttention(
                    num_heads, expansion, kernel_size, reduction, constraint, grid
                )
            heads = num_heads if reduction else expansion * num_heads
            return SharedAttention(heads, head_size=size)
        return Attention(num_heads) if computes else SharedAttention(num_heads)

    def own_mlp(index: int):
        scale = [] if layer_scale is None else [LayerScale(layer_scale, name="scale_channel")]
        return MLP(mlp_ratio, dropout=args.dropout, on_output=scale)

    stem = {"dim": dim, "patch_size": patch_size, "name": "patch_embed"}
    return [
        ConvStem(channels=(32, 64, 128), **stem) if conv_stem else PatchEmbedding(**stem),
        *class_tokens(),
        PositionEmbedding(grid, 1, name="pos_embed"),
        *args.blocks(
            own_attention,
            own_mlp,
            depth,
            similarity=Similarity(similarity, similarity_depth, similarity_over, similarity_of),
            residual_scale=residual_scale,
        ),
        last_norm(),
        *args.head(dense_head=dense_head),
    ]
