"""PiT: pooling-based vision transformer (Heo et al., 2021, arXiv 2103.16302).

Here for its part in Context Broadcasting, Appendix B.3, Table 11.
"""

from collections.abc import Sequence

from keras_vitx.layers import (
    MLP,
    Attention,
    ContextBroadcasting,
    PatchEmbedding,
    PositionEmbedding,
    TokenDownsampling,
)
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_heads, patch_grid
from keras_vitx.models.parts import Factory, Layers, Top, class_tokens, last_norm, rising, stack


@family(crop_ratio=0.9)
def PiT(
    image_shape: tuple[int, int, int],
    top: Top,
    dims: Sequence[int],
    depths: Sequence[int],
    num_heads: Sequence[int],
    mlp_ratio: float = 4.0,
    patch_size: int = 14,
    stride: int = 7,
    context_broadcast: bool = False,
    drop_path: float | Sequence[float] = 0.0,
    dropout: float = 0.0,
    attention: Factory | None = None,
    mlp: Factory | None = None,
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
        context_broadcast: Whether each MLP ends with Context Broadcasting.
        drop_path: Rate of stochastic depth in the last block, rising from 0 in the
            first; or one rate a block.
        dropout: Rate of dropout in the MLPs.
        attention: Makes the attention of the block with that index, counted over
            all stages, in place of `Attention`.
        mlp: Makes its MLP, in place of the family's.
    """
    grid = patch_grid(image_shape, patch_size, stride)
    if not len(dims) == len(depths) == len(num_heads) > 0:
        raise ValueError(
            "`dims`, `depths` and `num_heads` must have one entry a stage. "
            f"Received: dims={dims}, depths={depths}, num_heads={num_heads}."
        )
    rates = rising(drop_path, sum(depths))

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(mlp_ratio, dropout=dropout, on_output=context)

    layers = [
        PatchEmbedding(dims[0], patch_size, stride, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        *class_tokens(),
    ]
    for stage, (dim, depth, heads) in enumerate(zip(dims, depths, num_heads, strict=True)):
        check_heads(dim, heads)
        if stage:
            layers.append(TokenDownsampling(dim, grid, name=f"transformers_{stage}_pool"))
            grid = tuple((side + 1) // 2 for side in grid)
        first = sum(depths[:stage])
        layers += stack(
            attention or (lambda index, heads=heads: Attention(heads)),
            mlp or own_mlp,
            rates[first : first + depth],
            name=f"transformers_{stage}_blocks",
            first=first,
        )
    return [*layers, last_norm(), *top(1)]
