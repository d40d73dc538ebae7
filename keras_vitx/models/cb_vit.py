"""CB-ViT: Context Broadcasting (Hyeon-Woo et al., 2022, arXiv 2210.08457)."""

from collections.abc import Collection
from typing import Literal

import keras

from keras_vitx.checks import check, check_argument, check_counts
from keras_vitx.layers import MLP, Attention, ContextBroadcasting, PatchEmbedding, PositionEmbedding
from keras_vitx.models.arguments import Layers, ModelArguments
from keras_vitx.models.build import family
from keras_vitx.models.common import check_heads, class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_DEFAULT
from keras_vitx.weights.names import Row, Table

SLOTS = {"front": "on_input", "middle": "on_hidden", "end": "on_output"}
BRANCHES = {"mlp": ("mlp",), "msa": ("msa",), "both": ("mlp", "msa")}


# No public checkpoint has these weights; the name is ours.
CHECKPOINT = Table(rows=(Row(r"(.+)/context/scaling", r"\1/scaling"),))


@family(IMAGENET_DEFAULT.replace(crop_ratio=0.9), CHECKPOINT)
def CBViT(
    args: ModelArguments,
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
    position: str = "end",
    where: str = "mlp",
    scaled: bool = False,
    blocks: Collection[int] | None = None,
    patch_size: int = 16,
    context: str = "mean",
    scale: float | keras.initializers.Initializer = 1.0,
    distillation_token: bool = False,
) -> Layers:
    """ViT with Context Broadcasting, which adds the mean over all tokens to every token.

    Attention then does not have to learn uniform maps (Section 2.2); see
    `ContextBroadcasting`.

        >>> kv.CBViT(dim=8, depth=2, num_heads=2, patch_size=8, input_shape=(16, 16, 3))

    Args:
        dim, depth, num_heads, mlp_ratio: As in `ViT`.
        position: `"front"`, `"middle"` (after the activation, in the MLP only) or
            `"end"` (Table 5).
        where: `"mlp"`, `"msa"` (the attention) or `"both"` (Table 5).
        scaled: Whether the mean is scaled by one learned weight per channel, CB_S
            (Section 2.2).
        blocks: Indices of the blocks with Context Broadcasting, e.g. the deeper half
            (Table 9); None means all.
        patch_size: Side of a patch in pixels.
        context: The context to broadcast, as in `ContextBroadcasting` (Tables 10, 13, 14).
        scale: Initial value of the weights, if `scaled`.
        distillation_token: As in `ViT`.
    """
    grid = args.grid(patch_size)
    check_heads(dim, num_heads)
    check_counts(depth=depth)
    check_argument("position", position, Literal[tuple(SLOTS)])
    check_argument("where", where, Literal[tuple(BRANCHES)])
    indices = range(depth) if blocks is None else blocks
    known = isinstance(indices, Collection) and set(indices) <= set(range(depth))
    check(known, f"`blocks` must be indices of blocks, from 0 to {depth - 1}.", blocks)

    def broadcasting(branch: str, index: int) -> dict[str, Layers]:
        if branch not in BRANCHES[where] or index not in indices:
            return {}
        layer = ContextBroadcasting(context, scale if scaled else None, name="context")
        return {SLOTS[position]: [layer]}

    tokens = class_tokens(distillation_token)
    return [
        PatchEmbedding(dim, patch_size, name="patch_embed"),
        *tokens,
        PositionEmbedding(grid, len(tokens), name="pos_embed"),
        *args.blocks(
            lambda index: Attention(num_heads, **broadcasting("msa", index)),
            lambda index: MLP(mlp_ratio, dropout=args.dropout, **broadcasting("mlp", index)),
            depth,
        ),
        last_norm(),
        *args.head(len(tokens)),
    ]
