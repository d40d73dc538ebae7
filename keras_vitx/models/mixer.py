"""MLP-Mixer (Tolstikhin et al., 2021, arXiv 2105.01601).

Included for the Context Broadcasting experiments (Appendix B.3, Table 11).
"""

from keras_vitx.checks import check_counts
from keras_vitx.layers import MLP, ContextBroadcasting, PatchEmbedding, TokenMixing
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import last_norm
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights.names import Table

CHECKPOINT = Table(replacements=(("/attn/mlp/", "/mlp_tokens/"), ("/mlp/", "/mlp_channels/")))


@family(IMAGENET_INCEPTION.replace(crop_ratio=0.875), CHECKPOINT)
def Mixer(
    args: ModelArguments,
    dim: int,
    depth: int,
    mlp_ratio: tuple[float, float] = (0.5, 4.0),
    patch_size: int = 16,
    context_broadcast: bool = False,
) -> Layers:
    """MLP-Mixer: an MLP along the token axis replaces attention.

    There are no position embeddings and no class token, and the weights only fit one
    number of patches. Weights start as in the public code: Xavier uniform in the MLPs, and a
    classifier of zeros.

        >>> kv.Mixer(dim=8, depth=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth: As in `ViT`.
        mlp_ratio: Hidden widths of the MLP along tokens and of the MLP along channels,
            divided by `dim`.
        patch_size: Side of a patch in pixels.
        context_broadcast: Whether the MLP along channels ends with Context
            Broadcasting.
    """
    args.grid(patch_size)
    check_counts(dim=dim)
    along_tokens, along_channels = mlp_ratio

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(along_channels, dropout=args.dropout, on_output=context, initialization="xavier")

    return [
        PatchEmbedding(dim, patch_size, initialization="lecun", name="stem"),
        *args.blocks(
            lambda index: TokenMixing(int(along_tokens * dim), args.dropout, "xavier"),
            own_mlp,
            depth,
        ),
        last_norm(),
        *args.head(num_class_tokens=0, initialization="zeros"),
    ]
