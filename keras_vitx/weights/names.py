"""What PyTorch checkpoints call our variables: one row a rule, first match wins."""

import re
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One rule.

    Attributes:
        pattern: Regular expression for the whole of a variable's path, in which
            `blocks_7/` already reads `blocks.7/` and parts are replaced.
        name: The checkpoint's name for it, where `/` stands for a dot.
        layout: How the checkpoint holds it: "same"; "kernel", outputs first,
            which Keras has last; "positions", resampled where grids differ;
            "mixing", a mix of heads as a 1 x 1 convolution; "depthwise", a kernel
            a channel; "map", positions as an image, channels first.
    """

    pattern: str
    name: str
    layout: str = "same"


class Table(NamedTuple):
    """How one family's paths become a checkpoint's names.

    Attributes:
        parts: Parts of a path and what replaces them, in order, as in `re.sub`.
        rows: Rules for what the parts leave; they come before the generic ones.
    """

    parts: tuple[tuple[str, str], ...] = ()
    rows: tuple[Row, ...] = ()


GENERIC = Table(
    parts=(
        (r"_(\d+)(?=/)", r".\1"),
        (r"_(\d+)_", r".\1."),
        # The parts of a head that reads several tokens.
        (r"^head/(?=head|aux_head)", ""),
    ),
    rows=(
        Row(r"(.+)/kernel", r"\1/weight", "kernel"),
        Row(r"(.+)/gamma", r"\1/weight"),
        Row(r"(.+)/beta", r"\1/bias"),
        Row(r"(.+)/bias", r"\1/bias"),
        Row(r"(.+)/moving_mean", r"\1/running_mean"),
        Row(r"(.+)/moving_variance", r"\1/running_var"),
        Row(r"pos_embed/embeddings", r"pos_embed", "positions"),
        Row(r"(cls|dist)_token/token", r"\1_token"),
    ),
)

FAMILIES = {
    "CaiT": Table(
        rows=(
            # Mixing matrices are (heads out, heads in) on both sides.
            Row(r"(.+)/(proj_[lw])/kernel", r"\1/\2/weight"),
            Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
        ),
    ),
    "ConViT": Table(rows=(Row(r"(.+)/gating_param", r"\1/gating_param"),)),
    "DeepViT": Table(
        parts=(("/re_attention/", "/"),),
        rows=(Row(r"(.+)/reatten_matrix/kernel", r"\1/reatten_matrix/weight", "mixing"),),
    ),
    "RefinedViT": Table(
        parts=(
            ("/refinement/adapt_bn/", "/adapt_bn/"),
            ("/refinement/", "/DLA/"),
            # Blocks without queries and keys call their values that, too.
            ("/attn/v/", "/attn/qkv/"),
        ),
        rows=(
            Row(r"(.+)/(conv_exp|conv_pro)/kernel", r"\1/\2/weight", "mixing"),
            Row(r"(.+)/depth_sep_conv/kernel", r"\1/depth_sep_conv/weight"),
            Row(r"(.+)/scale_channel/gamma", r"\1/scale_channel"),
        ),
    ),
    # No public code has these weights; the name is ours.
    "CBViT": Table(rows=(Row(r"(.+)/context/scaling", r"\1/scaling"),)),
    "PiT": Table(
        parts=(("patch_embed/proj/", "patch_embed/conv/"),),
        rows=(
            Row(r"pos_embed/embeddings", r"pos_embed", "map"),
            Row(r"(.+)\.pool/conv/kernel", r"\1/pool/conv/weight", "depthwise"),
        ),
    ),
    "Mixer": Table(
        parts=(
            ("/attn/mlp/", "/mlp_tokens/"),
            ("/mlp/", "/mlp_channels/"),
        ),
    ),
}

# Ends of names of what PyTorch keeps in a file and no model needs: counters, and
# distances that follow from the grid.
IGNORED = ("num_batches_tracked", "rel_indices")

# Layers whose last axis counts classes.
HEADS = ("head", "head_dist", "aux_head")

# From PyTorch's order of a kernel's axes to Keras' order, by rank.
_TO_KERAS = {2: (1, 0), 4: (2, 3, 1, 0)}


def checkpoint_name(path: str, family: str) -> tuple[str, str]:
    """Return a variable's (name, layout) in a PyTorch checkpoint.

    Args:
        path: The variable's path, such as "blocks_7/attn/qkv/kernel".
        family: The model's family.

    Raises:
        ValueError: when no row knows the path.
    """
    table = FAMILIES.get(family, Table())
    known = path
    for part, replacement in (*GENERIC.parts, *table.parts):
        known = re.sub(part, replacement, known)
    for row in (*table.rows, *GENERIC.rows):
        match = re.fullmatch(row.pattern, known)
        if match:
            return match.expand(row.name).replace("/", "."), row.layout
    raise ValueError(f"No checkpoint has a name for the variable {path!r} of a {family} model.")


def is_head(name: str) -> bool:
    """Tell whether a path or a checkpoint's name belongs to a classifier."""
    return re.split(r"[./]", name)[0] in HEADS


def to_keras(array: np.ndarray, layout: str) -> np.ndarray:
    """Bring an array of a checkpoint into Keras' order of axes."""
    if layout == "kernel":
        return array.transpose(_TO_KERAS[array.ndim])
    if layout == "mixing":
        return array[:, :, 0, 0]
    if layout == "depthwise":
        # Outputs of one channel lie side by side on both sides; the caller splits them.
        return array[:, 0].transpose(1, 2, 0)
    if layout == "map":
        return array.transpose(0, 2, 3, 1).reshape(1, -1, array.shape[1])
    return array


def from_keras(array: np.ndarray, layout: str, grid: tuple[int, int] | None = None) -> np.ndarray:
    """Bring a variable's array into the checkpoint's order of axes; `grid` is for a "map"."""
    if layout == "kernel":
        return array.transpose(np.argsort(_TO_KERAS[array.ndim]))
    if layout == "mixing":
        return array[:, :, None, None]
    if layout == "depthwise":
        return array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)[:, None]
    if layout == "map":
        return array.reshape(1, *grid, -1).transpose(0, 3, 1, 2)
    return array


def shape_in_checkpoint(
    shape: tuple[int, ...], layout: str, grid: tuple[int, int] | None = None
) -> tuple[int, ...]:
    """Return the shape that a checkpoint gives a variable of `shape`."""
    return from_keras(np.broadcast_to(np.float32(0), shape), layout, grid).shape
