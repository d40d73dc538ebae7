"""RoPE-ViT, DINOv3, EVA-02 and Perception Encoder: vision transformers with rotary positions.

Heo et al., 2024, arXiv 2403.13298; Siméoni et al., 2025, arXiv 2508.10104; Fang et al., 2023, arXiv
2303.11331; Bolya et al., 2025, arXiv 2504.13181. The weights of DINOv3 have a license of their own, with conditions:
https://ai.meta.com/resources/models-and-libraries/dinov3-license.
"""

from collections.abc import Mapping
from typing import Any, Literal

from keras_vitx.checks import check_argument
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.vit import ViT
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    rows=(
        Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
        Row(r"blocks\.\d+/attn/rope/freqs", r"rope/freqs", "stacked"),
    ),
    of_head=("attn_pool", "fc_norm"),
    apart=True,
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
    check_argument("positions", positions, Literal["patches", "tokens"] | None)
    given = {**locals(), "rotary": rotary or {}}
    placed = {None: None, "patches": False, "tokens": True}[given.pop("positions")]
    return ViT.list_layers(**given, class_position=placed)
