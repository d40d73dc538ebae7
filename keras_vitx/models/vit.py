"""ViT and DeiT: the plain vision transformer, with or without a distillation token.

Dosovitskiy et al., 2020, arXiv 2010.11929; Touvron et al., 2020, arXiv 2012.12877.
"""

import keras

from keras_vitx.layers import MLP, Attention, PatchEmbedding
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_heads, patch_grid
from keras_vitx.models.parts import Layers, Stack, Top, class_token_first
from keras_vitx.preprocessing import IMAGENET_COLOURS


@family(IMAGENET_COLOURS.but(crop_ratio=0.9))
def ViT(
    image_shape: tuple[int, int, int],
    top: Top,
    stack: Stack,
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
    distillation_token: bool = False,
    patch_size: int = 16,
    layer_scale: float | keras.initializers.Initializer | None = None,
    scalar_scale: bool = False,
) -> Layers:
    """Patches and a class token attend to each other in every block.

    Args:
        dim: Width of a token.
        depth: Number of blocks.
        num_heads: Number of heads; it must divide `dim`.
        mlp_ratio: Hidden width of an MLP over `dim`.
        distillation_token: Whether DeiT's second token, with a classifier of its
            own, stands beside the class token.
        patch_size: Side of a patch in pixels.
        layer_scale: Start of LayerScale, a number or an initializer; None leaves
            it out (CaiT, Table 1).
        scalar_scale: One learned weight a branch instead of one a channel.
    """
    grid = patch_grid(image_shape, patch_size)
    check_heads(dim, num_heads)
    blocks = stack(
        lambda index: Attention(num_heads),
        lambda index: MLP(mlp_ratio, dropout=stack.dropout),
        stack.rates(depth),
        layer_scale=layer_scale,
        scalar_scale=scalar_scale,
    )
    stem = PatchEmbedding(dim, patch_size, name="patch_embed")
    return class_token_first(
        stem, grid, blocks, top(1 + distillation_token), distillation_token=distillation_token
    )
