"""ViT and DeiT: the plain vision transformer, with or without a distillation token.

Dosovitskiy et al., 2020, arXiv 2010.11929; Touvron et al., 2020, arXiv 2012.12877.
"""

import keras

from keras_vitx.layers import MLP, Attention, PatchEmbedding, PositionEmbedding
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_heads
from keras_vitx.models.common import class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.9))
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
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    tokens = class_tokens(distillation_token)
    blocks = args.blocks(
        lambda index: Attention(num_heads),
        lambda index: MLP(mlp_ratio, dropout=args.dropout),
        depth,
        layer_scale=layer_scale,
        scalar_scale=scalar_scale,
    )
    return [
        PatchEmbedding(dim, patch_size, name="patch_embed"),
        *tokens,
        PositionEmbedding(grid, len(tokens), name="pos_embed"),
        *blocks,
        last_norm(),
        *args.head(len(tokens)),
    ]
