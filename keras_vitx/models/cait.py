"""CaiT: going deeper with image transformers (Touvron et al., 2021, arXiv 2103.17239)."""

import keras

from keras_vitx.checks import check, check_counts
from keras_vitx.layers import (
    MLP,
    ClassAttention,
    ClassBlock,
    PatchEmbedding,
    PositionEmbedding,
    TalkingHeadsAttention,
)
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    rows=(
        # Mixing matrices are (heads out, heads in) in both layouts.
        Row(r"(.+)/(proj_[lw])/kernel", r"\1/\2/weight"),
        Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
    ),
)


@family(IMAGENET_DEFAULT, CHECKPOINT)
def CaiT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    class_depth: int = 2,
    mlp_ratio: float = 4.0,
    layer_scale: float | keras.initializers.Initializer | None = 1e-5,
    patch_size: int = 16,
    class_token_at: int | None = None,
    class_in_keys: bool = True,
    class_layer_scale: float | keras.initializers.Initializer | str | None = "same",
    scalar_scale: bool = False,
    distillation_token: bool = False,
) -> Layers:
    """CaiT: self-attention between the patches, followed by class attention.

    Blocks of talking-heads attention with LayerScale (Section 2) run on the patches
    only. Then the class token is added, and class blocks (Section 3) update only it.

        >>> kv.CaiT(dim=8, depth=3, num_heads=2, class_depth=1, mlp_ratio=2.0, layer_scale=0.5,
        ... patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim: Width of a token.
        depth: Number of blocks of the self-attention stage.
        num_heads: Number of heads, a divisor of `dim`.
        class_depth: Number of class blocks (Table 2).
        mlp_ratio: Hidden width of an MLP divided by `dim`.
        layer_scale: Initial value of LayerScale, a number or an initializer (Tables 4,
            A.1); None disables LayerScale.
        patch_size: Side of a patch in pixels.
        class_token_at: Number of blocks before the class token (Table 2); None means all
            of them. Later blocks treat it like any other token.
        class_in_keys: Whether the keys of class attention include the class token
            (Appendix B).
        class_layer_scale: LayerScale in class blocks; `"same"` means `layer_scale`, None
            disables it (Appendix B).
        scalar_scale: Whether LayerScale has one learned weight per branch instead of one
            per channel. Initialized to 0 or ε this is ReZero with LayerNorm, to 1 the
            Fixup-like variant (Table 1).
        distillation_token: Whether to add DeiT's distillation token, with its own
            classifier, together with the class token (Table B.1).
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    check_counts(minimum=0, class_depth=class_depth)
    entry = depth if class_token_at is None else class_token_at
    rule = f"`class_token_at` must be from 0 to depth={depth}"
    check(0 <= entry <= depth, f"{rule}.", class_token_at)
    sees_patches = class_depth > 0 or entry < depth or args.pools_patches
    rule += ", and below with class_depth=0, unless pooling='avg': it would never see a patch."
    check(sees_patches, rule, class_token_at)
    if class_layer_scale == "same":
        class_layer_scale = layer_scale

    blocks = args.blocks(
        lambda index: TalkingHeadsAttention(num_heads),
        lambda index: MLP(mlp_ratio, dropout=args.dropout),
        depth,
        drop_path_schedule="constant",
        stage_starts=[entry],
        layer_scale=layer_scale,
        scalar_scale=scalar_scale,
    )
    # The class token is unused if the patches are pooled and there are no class blocks.
    unread = args.pools_patches and class_depth == 0
    tokens = [] if unread else class_tokens(distillation_token)
    class_blocks = [
        ClassBlock(
            ClassAttention(num_heads, len(tokens), class_in_keys),
            MLP(mlp_ratio, dropout=args.dropout),
            layer_scale=class_layer_scale,
            scalar_scale=scalar_scale,
            residual_dtype=args.residual_dtype,
            name=f"blocks_token_only_{index}",
        )
        for index in range(class_depth)
    ]
    return [
        PatchEmbedding(dim, patch_size, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        *blocks[:entry],
        *tokens,
        *blocks[entry:],
        *class_blocks,
        last_norm(),
        *args.head(len(tokens)),
    ]
