"""PiT: pooling-based vision transformer (Heo et al., 2021, arXiv 2103.16302).

Here for its part in Context Broadcasting, Appendix B.3, Table 11.
"""

from collections.abc import Sequence

from keras_vitx.layers import (
    MLP,
    Attention,
    ClassToken,
    ContextBroadcasting,
    PatchEmbedding,
    PositionEmbedding,
    TokenDownsampling,
)
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_counts, check_heads, patch_grid
from keras_vitx.models.parts import Layers, Stack, Top, last_norm
from keras_vitx.preprocessing import IMAGENET_COLOURS


@family(IMAGENET_COLOURS.but(crop_ratio=0.9))
def PiT(
    image_shape: tuple[int, int, int],
    top: Top,
    stack: Stack,
    dims: Sequence[int],
    depths: Sequence[int],
    num_heads: Sequence[int],
    mlp_ratio: float = 4.0,
    patch_size: int = 14,
    stride: int = 7,
    distillation_token: bool = False,
    context_broadcast: bool = False,
) -> Layers:
    """A ViT in stages: between them tokens become fewer and wider.

    Args:
        dims: Width of a token in each stage, each a multiple of the one before.
        depths: Number of blocks of each stage.
        num_heads: Number of heads in each stage.
        mlp_ratio: Hidden width of an MLP over that of its stage.
        patch_size: Side of a patch in pixels.
        stride: From one patch to the next in pixels; what is left at the edge of an
            image is cut off.
        distillation_token: Whether a second token, with a classifier of its own,
            stands beside the class token.
        context_broadcast: Whether each MLP ends with Context Broadcasting.
    """
    grid = patch_grid(image_shape, patch_size, stride)
    stages = (dims, depths, num_heads)
    if not all(isinstance(one, (list, tuple)) and len(one) == len(dims) > 0 for one in stages):
        raise ValueError(
            "`dims`, `depths` and `num_heads` must have one entry a stage. "
            f"Received: dims={dims}, depths={depths}, num_heads={num_heads}."
        )
    for depth in depths:
        check_counts(depths=depth)
    rates = stack.rates(sum(depths))
    num_tokens = 1 + distillation_token

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(mlp_ratio, dropout=stack.dropout, on_output=context)

    layers = [
        PatchEmbedding(dims[0], patch_size, stride, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        # One variable holds both, in the public checkpoints too.
        ClassToken(num_tokens, name="cls_token"),
    ]
    for stage, (dim, depth, heads) in enumerate(zip(dims, depths, num_heads, strict=True)):
        check_heads(dim, heads)
        if stage:
            name = f"transformers_{stage}_pool"
            layers.append(TokenDownsampling(dim, grid, num_tokens, name=name))
            grid = layers[-1].new_grid
        first = sum(depths[:stage])
        layers += stack(
            lambda index, heads=heads: Attention(heads),
            own_mlp,
            rates[first : first + depth],
            name=f"transformers_{stage}_blocks",
            first=first,
        )
    return [*layers, last_norm(), *top(num_tokens)]
