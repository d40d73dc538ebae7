"""PiT: pooling-based vision transformer (Heo et al., 2021, arXiv 2103.16302).

Included for the Context Broadcasting experiments (Appendix B.3, Table 11).
"""

from collections.abc import Sequence

from keras_vitx.checks import check_counts
from keras_vitx.layers import (
    MLP,
    Attention,
    ClassToken,
    ContextBroadcasting,
    PatchEmbedding,
    PositionEmbedding,
)
from keras_vitx.layers.tokens import TokenDownsampling
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, last_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

CHECKPOINT = Table(
    replacements=(("patch_embed/proj/", "patch_embed/conv/"),),
    rows=(
        Row(r"pos_embed/embeddings", r"pos_embed", "map"),
        Row(r"(.+)\.pool/conv/kernel", r"\1/pool/conv/weight", "depthwise"),
    ),
)


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.9), CHECKPOINT)
def PiT(
    args: ModelArguments,
    dims: Sequence[int],
    depths: Sequence[int],
    num_heads: Sequence[int],
    mlp_ratio: float = 4.0,
    patch_size: int = 14,
    stride: int = 7,
    distillation_token: bool = False,
    context_broadcast: bool = False,
) -> Layers:
    """PiT: a ViT in stages, with pooling between them to fewer and wider tokens.

    Its Dense layers start with PyTorch's default initialization, as in the released code.

        >>> kv.PiT(dims=(8, 16), depths=(1, 2), num_heads=(2, 4),
        ... patch_size=6, stride=5, input_shape=(16, 16, 3))

    Args:
        dims: Width of a token per stage, each a multiple of the previous one.
        depths: Number of blocks per stage.
        num_heads: Number of heads per stage.
        mlp_ratio: Hidden width of an MLP divided by the width of its stage.
        patch_size: Side of a patch in pixels.
        stride: Distance between adjacent patches in pixels; incomplete patches at the edges
            of an image are dropped.
        distillation_token: Whether to add a distillation token, with its own classifier.
        context_broadcast: Whether each MLP ends with Context Broadcasting.
    """
    grid = args.grid(patch_size, stride)
    for dim, depth, heads in zip(dims, depths, num_heads, strict=True):
        check_counts(depths=depth)
        check_heads(dim, heads)
    num_tokens = 1 + distillation_token
    # The stage of every block.
    stage_of = [stage for stage, depth in enumerate(depths) for _ in range(depth)]
    starts = [stage_of.index(stage) for stage in range(len(depths))]

    def own_mlp(index: int):
        context = [ContextBroadcasting(name="context")] if context_broadcast else []
        return MLP(mlp_ratio, dropout=args.dropout, on_output=context, initialization="uniform")

    blocks = args.blocks(
        lambda index: Attention(num_heads[stage_of[index]], initialization="uniform"),
        own_mlp,
        sum(depths),
        stage_starts=starts,
        names=[
            f"transformers_{stage}_blocks_{index - starts[stage]}"
            for index, stage in enumerate(stage_of)
        ],
    )
    layers = [
        PatchEmbedding(dims[0], patch_size, stride, name="patch_embed"),
        PositionEmbedding(grid, name="pos_embed"),
        # One variable holds both tokens, as in the public checkpoints.
        ClassToken(num_tokens, name="cls_token"),
    ]
    for stage, (dim, start, depth) in enumerate(zip(dims, starts, depths, strict=True)):
        if stage:
            name = f"transformers_{stage}_pool"
            layers.append(TokenDownsampling(dim, grid, num_tokens, name=name))
            grid = layers[-1].new_grid
        layers += blocks[start : start + depth]
    return [*layers, last_norm(), *args.head(num_tokens, initialization="uniform", dim=dims[-1])]
