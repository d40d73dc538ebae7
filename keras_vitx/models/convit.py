"""ConViT: soft convolutional inductive biases (d'Ascoli et al., 2021, arXiv 2103.10697)."""

from keras_vitx.checks import check, check_counts
from keras_vitx.layers import (
    MLP,
    Attention,
    GatedPositionalAttention,
    PatchEmbedding,
    PositionalAttention,
    PositionEmbedding,
)
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(rows=(Row(r"(.+)/gating_param", r"\1/gating_param"),))


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.875), CHECKPOINT)
def ConViT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    local_depth: int | None = None,
    locality_strength: float = 1.0,
    mlp_ratio: float = 4.0,
    patch_size: int = 16,
    conv_start: bool | str = True,
    gated: bool = True,
    initial_gate: float = 1.0,
    learn_gates: bool = True,
    frozen_attention: bool = False,
) -> Layers:
    """ConViT: attention initialized as a convolution, with a learned gate per head.

    Blocks of gated positional self-attention (GPSA, Section 3) run on the patches; then
    the class token is added, and plain blocks follow.

        >>> kv.ConViT(dim=8, depth=3, num_heads=4, local_depth=2,
        ... patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth: As in `ViT`.
        num_heads: Number of heads, a divisor of `dim`, and a square number for the
            convolutional initialization.
        local_depth: Number of GPSA blocks (Figure 8); None is 10, or what `depth` allows. If
            it is `depth`, the patches must be pooled: the class token never sees them.
        locality_strength: How sharply a GPSA head initially attends to its neighbor
            (Figure 8).
        mlp_ratio, patch_size: As in `ViT`.
        conv_start: Whether GPSA is initialized as a convolution (Table 3); `"partial"` as
            in `PositionalAttention`.
        gated: Whether a gate balances content and positional attention; False sums their
            logits (PSA, Appendix A).
        initial_gate: Initial value of the gates, before the sigmoid.
        learn_gates: Whether the gates are trained (Table 3).
        frozen_attention: Whether the GPSA layers are frozen (Table 3).
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    if local_depth is None:
        local_depth = min(10, depth if args.pools_patches else depth - 1)
    check_counts(minimum=0, local_depth=local_depth)
    check(local_depth <= depth, f"`local_depth` must be at most depth={depth}.", local_depth)
    rule = f"`local_depth` must be below depth={depth}, unless pooling='avg': a class token behind "
    sees_patches = local_depth < depth or args.pools_patches
    check(sees_patches, rule + "all blocks never sees a patch.", local_depth)

    def own_attention(index: int):
        if index >= local_depth:
            return Attention(num_heads, qkv_bias=False)
        arguments = {
            "grid": grid,
            "conv_start": conv_start,
            "locality_strength": locality_strength,
            "trainable": not frozen_attention,
        }
        if not gated:
            return PositionalAttention(num_heads, **arguments)
        return GatedPositionalAttention(num_heads, initial_gate, learn_gates, **arguments)

    blocks = args.blocks(
        own_attention,
        lambda index: MLP(mlp_ratio, dropout=args.dropout),
        depth,
        stage_starts=[local_depth],
    )
    return [
        PatchEmbedding(dim, patch_size, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        *blocks[:local_depth],
        *class_tokens(),
        *blocks[local_depth:],
        last_norm(),
        *args.head(),
    ]
