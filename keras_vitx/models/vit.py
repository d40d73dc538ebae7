"""ViT, DeiT, DeiT III, DINOv2, CLIP's and SigLIP 2's image towers: the plain vision transformer.

Dosovitskiy et al., 2020, arXiv 2010.11929; Touvron et al., 2020, arXiv 2012.12877; Touvron et al.,
2022, arXiv 2204.07118; Oquab et al., 2023, arXiv 2304.07193; Darcet et al., 2023, arXiv 2309.16588;
Radford et al., 2021, arXiv 2103.00020; Zhai et al., 2023, arXiv 2303.15343; Tschannen et al., 2025, arXiv 2502.14786.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vitx.checks import check_counts
from keras_vitx.layers import (
    MLP,
    Attention,
    AttentionPooling,
    PositionEmbedding,
    RegisterTokens,
    RelativePositionBias,
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
        Row(r"(.+)/ls([12])/gamma", r"\1/ls\2/gamma"),
        Row(r"patch_norm/scale", r"patch_embed/norm/weight"),
        Row(r"(.+)/scale", r"\1/weight"),
    ),
    of_head=("attn_pool", "fc_norm"),
)


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.9), CHECKPOINT)
def ViT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
    distillation_token: bool = False,
    patch_size: int = 16,
    layer_scale: float | keras.initializers.Initializer | None = None,
    scalar_scale: bool = False,
    register_tokens: int = 0,
    class_position: bool | None = True,
    class_token: bool = True,
    activation: str | Callable[..., Any] = "gelu",
    attention_pooling: bool | int = False,
    gated_mlp: bool = False,
    qkv_bias: bool | str = True,
    pre_norm: bool = False,
    patch_bias: bool = True,
    last_norm: bool = True,
    mean_pooling: bool = False,
    epsilon: float = 1e-6,
    mlp_norm: bool = False,
    heads_norm: bool = False,
    norm: str = "layer",
    patch_norm: bool = False,
    proj_bias: bool = True,
    rotary: Mapping[str, Any] | None = None,
    position_bias: bool = False,
    post_norm: bool = False,
) -> Layers:
    """ViT: self-attention between the patches and a class token in every block.

        >>> kv.ViT(dim=8, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim: Width of a token.
        depth: Number of blocks.
        num_heads: Number of heads, a divisor of `dim`.
        mlp_ratio: Hidden width of an MLP divided by `dim`.
        distillation_token: Whether to add DeiT's distillation token, with its own
            classifier.
        patch_size: Side of a patch in pixels.
        layer_scale: Initial value of LayerScale, a number or an initializer; None
            disables LayerScale (CaiT, Table 1).
        scalar_scale: Whether LayerScale has one learned weight per branch instead of one
            per channel.
        register_tokens: Number of learned tokens between the class token and the patches, which
            no classifier reads (Darcet et al., Section 2.2).
        class_position: Whether the class token and the registers have position embeddings. If not,
            they join the patches after these have theirs (DeiT III, DINOv2 with registers); None
            is no position embeddings.
        class_token: Whether there is a class token. SigLIP has none.
        activation: Activation of the MLPs, as in `MLP`.
        attention_pooling: Whether a classifier reads the tokens by `AttentionPooling` (SigLIP),
            the `pooling` `"attention"`. With `include_top=False`, that gives the vector that SigLIP
            compares with texts, not normalized; other poolings leave that part of a file out.
            A number is of heads, with an MLP of ratio 4 (Perception Encoder).
        gated_mlp: Whether the MLPs are gated, by SiLU (DINOv2-g).
        qkv_bias: As in `Attention`.
        pre_norm: Whether there is a norm before the blocks (CLIP).
        patch_bias: Whether the projection of patches has a bias.
        last_norm: Whether there is a norm after the last block (not in C-RADIO and InternViT).
        mean_pooling: Whether a classifier reads the mean of the patches, which is normalized after
            it is taken (EVA). All tokens are then those of the last block, not normalized.
        epsilon: Epsilon of the norms.
        mlp_norm, heads_norm: Whether hidden units, aggregated heads are normalized (BEiT-3).
        norm: The norm of blocks, patches, and after the last block: `"layer"` or `"rms"` (AIMv2).
        patch_norm: Whether patches are normalized before they have positions (AIMv2).
        proj_bias: Whether the output projections and MLPs have biases.
        rotary: Further arguments of a `RotaryEmbedding` of queries and keys; None is none.
        position_bias: Whether each block has a `RelativePositionBias` (BEiT).
        post_norm: As in `Block`.
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(0, register_tokens=register_tokens, attention_pooling=int(attention_pooling))
    tokens = class_tokens(distillation_token) if class_token else []
    registers = [RegisterTokens(register_tokens, name="reg_token")] if register_tokens else []
    prefix, count = [*registers, *tokens], len(tokens) + register_tokens
    positions = PositionEmbedding(grid, count if class_position else 0, name="pos_embed")
    placed = {True: [*prefix, positions], False: [positions, *prefix], None: prefix}

    def own_norm(name: str = "norm"):
        return layer_norm(epsilon, name, norm)

    def own_mlp(index: int = 0, ratio: float = mlp_ratio):
        hidden = [own_norm()] if mlp_norm else []
        form = {"gated": gated_mlp, "use_bias": proj_bias, "on_hidden": hidden}
        return MLP(ratio, "silu" if gated_mlp else activation, dropout=args.dropout, **form)

    def own_attention(index: int):
        rope = [] if rotary is None else [RotaryEmbedding(grid, count, **rotary, name="rope")]
        bias = [RelativePositionBias(grid, count, name="positions")] if position_bias else []
        form = {"on_heads": [own_norm()] if heads_norm else [], "proj_bias": proj_bias}
        form |= {"on_queries_keys": rope, "on_logits": bias, "qkv_bias": qkv_bias}
        return Attention(num_heads, **form)

    blocks = args.blocks(
        own_attention,
        own_mlp,
        depth,
        layer_scale=layer_scale,
        scalar_scale=scalar_scale,
        epsilon=epsilon,
        norm=norm,
        post_norm=post_norm,
    )
    patches = [own_norm("patch_norm")] if patch_norm else []
    pool = None
    if attention_pooling:
        is_own = attention_pooling is True
        heads, ratio = (num_heads, mlp_ratio) if is_own else (attention_pooling, 4.0)
        mlp = own_mlp(ratio=ratio)
        pool = AttentionPooling(heads, mlp, epsilon=epsilon, name="attn_pool")
    counts = {"num_class_tokens": len(tokens), "num_register_tokens": register_tokens}
    placed = [*patches, *placed[class_position]]
    return [
        *embedding(dim, patch_size, placed, patch_bias, pre_norm, epsilon),
        *blocks,
        *ending(args, epsilon, last_norm, mean_pooling, pool, norm, **counts),
    ]
