"""CaiT: going deeper with image transformers (Touvron et al., 2021, arXiv 2103.17239)."""

import keras

from keras_vitx.layers import (
    MLP,
    Block,
    ClassAttention,
    ClassBlock,
    ClassToken,
    PatchEmbedding,
    PositionEmbedding,
    TalkingHeadsAttention,
)
from keras_vitx.models.build import check_counts, check_heads, family, patch_grid, variant


@family(crop_ratio=1.0)
def CaiT(
    image_shape: tuple[int, int, int],
    pooling: str | None,
    dim: int,
    depth: int,
    num_heads: int,
    class_depth: int = 2,
    mlp_ratio: float = 4.0,
    layer_scale: float | keras.initializers.Initializer | None = 1e-5,
    patch_size: int = 16,
    drop_path: float = 0.0,
    class_token_at: int | None = None,
    class_in_keys: bool = True,
    class_layer_scale: float | keras.initializers.Initializer | str | None = "same",
    scalar_scale: bool = False,
    dropout: float = 0.0,
) -> list[keras.layers.Layer]:
    """Patches talk among themselves first; then a class token reads them.

    Blocks of talking-heads attention with LayerScale (Section 2) run on the
    patches alone; then a class token enters, and class blocks (Section 3)
    update only it.

    Args:
        dim: Width of a token.
        depth: Number of blocks of the self-attention stage.
        num_heads: Number of heads; it must divide `dim`.
        class_depth: Number of class blocks (Table 2).
        mlp_ratio: Hidden width of an MLP over `dim`.
        layer_scale: Start of LayerScale, a number or an initializer (Tables 4,
            A.1); None leaves it out.
        patch_size: Side of a patch in pixels.
        drop_path: Rate of stochastic depth, the same in all blocks of the
            self-attention stage (Table 4); class blocks have none.
        class_token_at: Number of blocks before the class token enters (Table 2);
            None is after all of them. Blocks after it treat it as a token among
            others.
        class_in_keys: Whether the class token is among the keys of class
            attention (Appendix B).
        class_layer_scale: Start of LayerScale in class blocks; `"same"` is
            `layer_scale`, None leaves it out (Appendix B).
        scalar_scale: One learned weight a branch instead of one a channel:
            from 0 or ε it is ReZero with LayerNorm, from 1 the Fixup-like form
            (Table 1).
        dropout: Rate of dropout in the MLPs.
    """
    grid = patch_grid(image_shape, patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    check_counts(least=0, class_depth=class_depth)
    entry = depth if class_token_at is None else class_token_at
    if not 0 <= entry <= depth:
        raise ValueError(
            f"`class_token_at` must be from 0 to depth={depth}. Received: {class_token_at}."
        )
    reads_patches = pooling in ("avg", "max")
    if class_depth == 0 and entry == depth and not reads_patches:
        raise ValueError(
            "With class_depth=0 a class token that enters after all blocks never sees a patch: "
            "give `class_token_at` below `depth`, or pooling='avg'. "
            f"Received: class_token_at={class_token_at}, depth={depth}, pooling={pooling!r}."
        )
    if class_layer_scale == "same":
        class_layer_scale = layer_scale

    blocks = [
        Block(
            TalkingHeadsAttention(num_heads),
            MLP(mlp_ratio, dropout=dropout),
            layer_scale=layer_scale,
            scalar_scale=scalar_scale,
            drop_path=drop_path,
            name=f"blocks_{index}",
        )
        for index in range(depth)
    ]
    class_blocks = [
        ClassBlock(
            ClassAttention(num_heads, class_in_keys=class_in_keys),
            MLP(mlp_ratio, dropout=dropout),
            layer_scale=class_layer_scale,
            scalar_scale=scalar_scale,
            name=f"blocks_token_only_{index}",
        )
        for index in range(class_depth)
    ]
    # Nobody reads the class token where the patches are pooled without class blocks.
    class_token = [] if reads_patches and class_depth == 0 else [ClassToken(name="cls_token")]
    return [
        PatchEmbedding(dim, patch_size, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        *blocks[:entry],
        *class_token,
        *blocks[entry:],
        *class_blocks,
        keras.layers.LayerNormalization(epsilon=1e-6, name="norm"),
    ]


# fmt: off
# Width, depth and heads: Table 3. LayerScale and stochastic depth: Table 4 (the
# released code starts XXS36 at 1e-5).
CaiT_XXS24 = variant("CaiT_XXS24", CaiT, dim=192, depth=24, num_heads=4, layer_scale=1e-5, drop_path=0.05)
CaiT_XXS36 = variant("CaiT_XXS36", CaiT, dim=192, depth=36, num_heads=4, layer_scale=1e-6, drop_path=0.1)
CaiT_XS24 = variant("CaiT_XS24", CaiT, dim=288, depth=24, num_heads=6, layer_scale=1e-5, drop_path=0.05)
CaiT_XS36 = variant("CaiT_XS36", CaiT, dim=288, depth=36, num_heads=6, layer_scale=1e-6, drop_path=0.1)
CaiT_S24 = variant("CaiT_S24", CaiT, dim=384, depth=24, num_heads=8, layer_scale=1e-5, drop_path=0.1)
CaiT_S36 = variant("CaiT_S36", CaiT, dim=384, depth=36, num_heads=8, layer_scale=1e-6, drop_path=0.2)
CaiT_S48 = variant("CaiT_S48", CaiT, dim=384, depth=48, num_heads=8, layer_scale=1e-6, drop_path=0.3)
CaiT_M24 = variant("CaiT_M24", CaiT, dim=768, depth=24, num_heads=16, layer_scale=1e-5, drop_path=0.2)
CaiT_M36 = variant("CaiT_M36", CaiT, dim=768, depth=36, num_heads=16, layer_scale=1e-6, drop_path=0.3)
CaiT_M48 = variant("CaiT_M48", CaiT, dim=768, depth=48, num_heads=16, layer_scale=1e-6, drop_path=0.4)

# Not a size of the paper: for images of 32 x 32, the size of the shipped checkpoint.
CaiT_Mini = variant("CaiT_Mini", CaiT, input_shape=(32, 32, 3), classes=10, dim=96, depth=4, num_heads=4, patch_size=4, layer_scale=0.1)
