"""What PyTorch checkpoints call our variables: one row a rule, first match wins."""

import re
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One rule.

    Attributes:
        pattern: Regular expression for the whole of a variable's path, in which
            `blocks_7/` already reads `blocks.7/`.
        name: The checkpoint's name for it, where `/` stands for a dot.
        layout: How the checkpoint holds it: "same"; "kernel", outputs first,
            which Keras has last; "positions", resampled where grids differ.
    """

    pattern: str
    name: str
    layout: str = "same"


GENERIC = (
    Row(r"(.+)/kernel", r"\1/weight", "kernel"),
    Row(r"(.+)/gamma", r"\1/weight"),
    Row(r"(.+)/beta", r"\1/bias"),
    Row(r"(.+)/bias", r"\1/bias"),
    Row(r"pos_embed/embeddings", r"pos_embed", "positions"),
    Row(r"(cls|dist)_token/token", r"\1_token"),
)

# The rows of a family come before the generic ones.
FAMILIES = {
    "CaiT": (
        # Mixing matrices are (heads out, heads in) on both sides.
        Row(r"(.+)/(proj_[lw])/kernel", r"\1/\2/weight"),
        Row(r"(.+)/ls([12])/gamma", r"\1/gamma_\2"),
    ),
}

# Layers whose last axis counts classes.
HEADS = ("head", "head_dist")

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
    numbered = re.sub(r"_(\d+)/", r".\1/", path)
    for row in (*FAMILIES.get(family, ()), *GENERIC):
        match = re.fullmatch(row.pattern, numbered)
        if match:
            return match.expand(row.name).replace("/", "."), row.layout
    raise ValueError(f"No checkpoint has a name for the variable {path!r} of a {family} model.")


def is_head(name: str) -> bool:
    """Tell whether a path or a checkpoint's name belongs to a classifier."""
    return re.split(r"[./]", name)[0] in HEADS


def to_keras(array: np.ndarray, layout: str) -> np.ndarray:
    """Bring an array of a checkpoint into Keras' order of axes."""
    return array.transpose(_TO_KERAS[array.ndim]) if layout == "kernel" else array


def from_keras(array: np.ndarray, layout: str) -> np.ndarray:
    """Bring a variable's array into the checkpoint's order of axes."""
    return array.transpose(np.argsort(_TO_KERAS[array.ndim])) if layout == "kernel" else array


def shape_in_checkpoint(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape that a checkpoint gives a variable of `shape`."""
    if layout != "kernel":
        return tuple(shape)
    return tuple(shape[axis] for axis in np.argsort(_TO_KERAS[len(shape)]))
