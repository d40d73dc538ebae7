"""MLP-Mixer (Tolstikhin et al., 2021, arXiv 2105.01601).

Here for its part in Context Broadcasting, Appendix B.3, Table 11.
"""

from collections.abc import Sequence

from keras_vitx.layers import MLP, ContextBroadcasting, PatchEmbedding, TokenMixing
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_counts, patch_grid
from keras_vitx.models.parts import Factory, Layers, Top, last_norm, rising, stack


@family(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), crop_ratio=0.875)
def Mixer(
    image_shape: tuple[int, int, int],
    top: Top,
    dim: int,
    depth: int,
    mlp_ratio: tuple[float, float] = (0.5, 4.0),
    patch_size: int = 16,
    context_broadcast: bool = False,
    drop_path: float | Sequence[float] = 0.0,
    dropout: float = 0.0,
    attention: Factory | None = None,
    mlp: Factory | None = None,
) -> Layers:
    """Tokens are mixed by an MLP along them instead of by attention.

    There are neither positions nor a class token, and the weights hold for one
    number of patches.

    Args:
        dim: Width of a token.
        depth: Number of blocks.
        mlp_ratio: Hidden width over `dim`, of the MLP along tokens and of that
            along channels.
        patch_size: Side of a patch in pixels.
        context_broadcast: Whether the MLP along channels ends with Context
            Broadcasting.
        drop_path: Rate of stochastic depth in the last block, rising from 0 in the
            first; or one rate a block.
        dropout: Rate of dropout in the MLPs.
        attention: Makes what mixes tokens in the block with that index, in place
            of `TokenMixing`.
        mlp: Makes its MLP, in place of the family's.
    """
    patch_grid(image_shape, patch_size)
    check_counts(dim=dim)
    along_tokens, along_channels = mlp_ratio

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(along_channels, dropout=dropout, on_output=context)

    return [
        PatchEmbedding(dim, patch_size, name="stem"),
        *stack(
            attention or (lambda index: TokenMixing(int(along_tokens * dim), dropout)),
            mlp or own_mlp,
            rising(drop_path, depth),
        ),
        last_norm(),
        *top(0),
    ]
