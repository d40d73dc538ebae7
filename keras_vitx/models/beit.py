"""BEiT and BEiT v2 (Bao et al., 2021, arXiv 2106.08254; Peng et al., 2022, arXiv 2208.06366)."""

from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.vit import ViT
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    rows=(
        Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
        Row(r"(.+)/positions/table", r"\1/relative_position_bias_table", "offsets"),
    ),
    of_head=("fc_norm",),
)


@family(IMAGENET_INCEPTION.replace(crop_ratio=0.9), CHECKPOINT)
def BEiT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
    patch_size: int = 16,
    layer_scale: float | None = 0.1,
    mean_pooling: bool = False,
) -> Layers:
    """ViT with a learned bias of relative positions in every block, in place of positions.

    Queries and values have a bias, keys none. The table is resampled as in timm with the grid.

        >>> kv.BEiT(dim=8, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth, num_heads, mlp_ratio, patch_size, layer_scale, mean_pooling: As in `ViT`.
    """
    return ViT.list_layers(**locals(), class_position=None, position_bias=True, qkv_bias="qv")
