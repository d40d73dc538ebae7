"""What PyTorch checkpoints call our variables: one rule per row, the first match wins."""

import re
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One rule.

    Attributes:
        pattern: Regular expression that matches the whole path of a variable, in which
            `blocks_7/` already reads `blocks.7/` and parts are replaced.
        name: The checkpoint's name for it, with `/` for a dot.
        layout: How the checkpoint holds it: "same"; "kernel", outputs first, which Keras
            has last; "positions", resampled if the grids differ; "mixing", a mix of heads
            as a 1 x 1 convolution; "depthwise", one kernel per channel; "map", positions
            as an image, channels first.
    """

    pattern: str
    name: str
    layout: str = "same"


class Table(NamedTuple):
    """How the paths of a family's variables become the names of a checkpoint.

    Attributes:
        parts: Parts of a path and what replaces them, in order, as in `re.sub`.
        rows: Rules for the result; they come before the generic ones.
        mark: Regular expression that is found only in the names of this family's
            variables, in checkpoints or in Keras: errors say by it what a file looks
            like. None if the family has no variables of its own.
    """

    parts: tuple[tuple[str, str], ...] = ()
    rows: tuple[Row, ...] = ()
    mark: str | None = None


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

TABLES: dict[str, Table] = {}
"""The table of each family, by the family's name; families register theirs."""


def register(family: str, table: Table) -> None:
    """Make a family's table known.

    Args:
        family: The family's name, that of its models' `family`.
        table: What its checkpoints call its variables.
    """
    TABLES[family] = table


# Name endings of entries that no model needs: counters, and distances that follow from
# the grid.
IGNORED = ("num_batches_tracked", "rel_indices")

# Layers whose last axis counts classes.
HEADS = ("head", "head_dist", "aux_head")

# From PyTorch's order of a kernel's axes to Keras's, by rank.
_TO_KERAS = {2: (1, 0), 4: (2, 3, 1, 0)}


def checkpoint_name(path: str, family: str) -> tuple[str, str]:
    """Return a variable's (name, layout) in a PyTorch checkpoint.

    Args:
        path: The variable's path, such as "blocks_7/attn/qkv/kernel".
        family: The model's family.

    Raises:
        ValueError: if no row matches the path.
    """
    table = TABLES.get(family, Table())
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
    """Return an array of a checkpoint in Keras's order of axes."""
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
    """Return a variable's array in the checkpoint's order of axes; `grid` is for a "map"."""
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
