"""RoPE-ViT, DINOv3, EVA-02 and Perception Encoder: vision transformers with rotary positions.

Heo et al., 2024, arXiv 2403.13298; Siméoni et al., 2025, arXiv 2508.10104; Fang et al., 2023, arXiv
2303.11331; Bolya et al., 2025, arXiv 2504.13181. The weights of DINOv3 have a license of their own, with conditions:
https://ai.meta.com/resources/models-and-libraries/dinov3-license.
"""

from collections.abc import Mapping
from typing import Any, Literal

from keras_vitx.checks import check_argument, check_counts
from keras_vitx.layers import (
    MLP,
    Attention,
    AttentionPooling,
    PositionEmbedding,
    RegisterTokens,
    RotaryEmbedding,
)
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, embedding, ending
from keras_vitx.models.common import last_norm as layer_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    rows=(
        Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
        Row(r"blocks\.\d+/attn/rope/freqs", r"rope/freqs", "stacked"),
    ),
    of_head=("attn_pool", "fc_norm"),
)


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.9), CHECKPOINT)
def RotaryViT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    rotary: Mapping[str, Any] | None = None,
    mlp_ratio: float = 4.0,
    gated_mlp: bool = False,
    mlp_norm: bool = False,
    qkv_bias: bool | str = True,
    positions: str | None = None,
    register_tokens: int = 0,
    layer_scale: float | None = 1e-5,
    mean_pooling: bool = False,
    epsilon: float = 1e-6,
    patch_size: int = 16,
    class_token: bool = True,
    attention_pooling: int = 0,
    pre_norm: bool = False,
    patch_bias: bool = True,
    last_norm: bool = True,
    heads_norm: bool = False,
) -> Layers:
    """A ViT whose queries and keys are rotated by the positions of their patches.

        >>> kv.RotaryViT(dim=16, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth: As in `ViT`.
        num_heads: Number of heads; 4 must divide the size of one.
        rotary: Further arguments of `RotaryEmbedding`.
        mlp_ratio: As in `ViT`.
        gated_mlp: Whether the MLPs are gated (DINOv3-S+, EVA-02).
        mlp_norm: Whether the hidden units of an MLP are normalized (EVA-02-B and L).
        qkv_bias: As in `Attention`. timm's files of DINOv3 have no bias, unless they are named
            `qkvb`; Transformers' have one of `"qv"`.
        positions: What has learned positions, too: `"patches"` (RoPE-ViT, Section 4.1), or
            `"tokens"`, also the class token (EVA-02).
        register_tokens, layer_scale: As in `ViT`.
        mean_pooling: Whether a classifier reads the mean of the patches, which is normalized after
            it is taken (EVA-02). All tokens are then those of the last block, not normalized.
        epsilon: Epsilon of the norms.
        patch_size, class_token: As in `ViT`.
        attention_pooling: Number of heads of an `AttentionPooling`, as in `ViT`, with an MLP of
            ratio 4 (Perception Encoder); 0 is none.
        pre_norm, patch_bias, last_norm, heads_norm: As in `ViT`.
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(minimum=0, register_tokens=register_tokens, attention_pooling=attention_pooling)
    check_argument("positions", positions, Literal["patches", "tokens"] | None)

    def own_attention(index: int):
        rope = RotaryEmbedding(grid, count, **(rotary or {}), name="rope")
        heads = [layer_norm(epsilon)] if heads_norm else []
        return Attention(num_heads, on_queries_keys=[rope], qkv_bias=qkv_bias, on_heads=heads)

    def own_mlp(index: int):
        norm = [layer_norm(epsilon)] if mlp_norm else []
        kind = {"activation": "silu", "gated": True} if gated_mlp else {}
        return MLP(mlp_ratio, dropout=args.dropout, on_hidden=norm, **kind)

    registers = [RegisterTokens(register_tokens, name="reg_token")] if register_tokens else []
    tokens = class_tokens() if class_token else []
    prefix, count = [*registers, *tokens], len(tokens) + register_tokens
    learned = PositionEmbedding(grid, count if positions == "tokens" else 0, name="pos_embed")
    placed = {None: prefix, "patches": [learned, *prefix], "tokens": [*prefix, learned]}
    pooling = {"epsilon": epsilon, "name": "attn_pool"}
    pool = None
    if attention_pooling:
        pool = AttentionPooling(attention_pooling, MLP(4.0, dropout=args.dropout), **pooling)
    counts = {"num_class_tokens": len(tokens), "num_register_tokens": register_tokens}
    return [
        *embedding(dim, patch_size, placed[positions], patch_bias, pre_norm, epsilon),
        *args.blocks(own_attention, own_mlp, depth, layer_scale=layer_scale, epsilon=epsilon),
        *ending(args, epsilon, last_norm, mean_pooling, pool, **counts),
    ]
