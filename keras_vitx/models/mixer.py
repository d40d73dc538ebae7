"""MLP-Mixer (Tolstikhin et al., 2021, arXiv 2105.01601).

Here for its part in Context Broadcasting, Appendix B.3, Table 11.
"""

from keras_vitx.layers import MLP, ContextBroadcasting, PatchEmbedding, TokenMixing
from keras_vitx.models.build import family
from keras_vitx.models.checks import check_counts, patch_grid
from keras_vitx.models.parts import Layers, Stack, Top, last_norm
from keras_vitx.preprocessing import HALVES


@family(HALVES.but(crop_ratio=0.875))
def Mixer(
    image_shape: tuple[int, int, int],
    top: Top,
    stack: Stack,
    dim: int,
    depth: int,
    mlp_ratio: tuple[float, float] = (0.5, 4.0),
    patch_size: int = 16,
    context_broadcast: bool = False,
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
    """
    patch_grid(image_shape, patch_size)
    check_counts(dim=dim)
    if not isinstance(mlp_ratio, (list, tuple)) or len(mlp_ratio) != 2:
        raise ValueError(
            f"`mlp_ratio` must be a pair, along tokens and along channels. Received: {mlp_ratio!r}."
        )
    along_tokens, along_channels = mlp_ratio

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(along_channels, dropout=stack.dropout, on_output=context)

    return [
        PatchEmbedding(dim, patch_size, name="stem"),
        *stack(
            lambda index: TokenMixing(int(along_tokens * dim), stack.dropout),
            own_mlp,
            stack.rates(depth),
        ),
        last_norm(),
        *top(0),
    ]
