"""Rename tables from variable paths to PyTorch checkpoint names.

A table has one rule per row; the first match wins.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_vitx.keras_internals import automatic_name, children, sublayers


class Row(NamedTuple):
    """One rule of a rename table.

    `layout` is that in the checkpoint: "same"; "kernel", outputs first; "positions", resampled if
    the grids differ; "mixing", a 1 x 1 convolution; "depthwise", one kernel per channel; "map",
    position embeddings as an image, channels first; "stacked", those of all blocks along axis 1;
    "offsets", a table of relative positions.
    """

    pattern: str  # For the whole path, after `Table.replacements` (`blocks_7/` reads `blocks.7/`).
    name: str  # In the checkpoint, with `/` for a dot.
    layout: str = "same"


class Table(NamedTuple):
    """The rename table of a family, from variable paths to checkpoint names."""

    replacements: tuple[tuple[str, str], ...] = ()  # As in `re.sub`, before all rows.
    rows: tuple[Row, ...] = ()  # Tried before the generic ones.
    of_head: tuple[str, ...] = ()  # Layers behind the blocks, which a model without a head lacks.
    apart: bool = False  # Whether checkpoints have parts of some arrays: `transformers.apart`.


GENERIC = Table(
    replacements=(
        (r"_(\d+)(?=/)", r".\1"),
        (r"_(\d+)_", r".\1."),
        # The classifiers inside a head that reads several tokens.
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
        Row(r"(cls|dist|reg)_token/token", r"\1_token"),
        Row(r"(.+)/(q_bias|v_bias|latent)", r"\1/\2"),
    ),
)

TABLES: dict[str, Table] = {}
"""The rename table of each family, by name; `models.family` registers them."""


# Suffixes of entries that are ignored: counters, what the grid determines, and grids.
IGNORED = (
    *("num_batches_tracked", "rel_indices", "/grid"),
    *("rope.freqs_cos", "rope.freqs_sin", "rope_embed.periods"),
)

# Layers whose last axis is the classes.
HEADS = ("head", "head_dist", "aux_head")

# Kernel axes from PyTorch's order to Keras's, by rank.
_TO_KERAS = {2: (1, 0), 4: (2, 3, 1, 0)}


def weights_of(model) -> list[tuple[Any, str, Any]]:
    """Return (variable, path, layer that has it) for each of `model.weights`.

    The path is the names of the layers around the variable, and its own. Unlike `variable.path`, it
    depends neither on where the model was made, in a name scope or in the `build` of another model,
    nor on how many layers Keras named before; see `renumber`.
    """
    known: dict[int, tuple[str, Any]] = {}
    visited = set()

    def visit(layer, prefix: str) -> None:
        visited.add(id(layer))
        for child in children(layer):
            if id(child) not in visited:
                visit(child, f"{prefix}{child.name}/")
        for variable in layer.weights:
            known.setdefault(id(variable), (f"{prefix}{variable.name}", layer))

    visit(model, "")
    places = [known[id(variable)] for variable in model.weights]
    paths = renumber([path for path, _ in places], model)
    return [(v, paths[p], layer) for v, (p, layer) in zip(model.weights, places, strict=True)]


def renumber(paths: Iterable[str], model) -> dict[str, str]:
    """Number the layers that Keras named anew within their parent; return the new paths by the old.

    Keras numbers all layers of a class that have no name, e.g. "dense_7". Within their parent, they
    are "dense", "dense_1" and so on, in the same order. `model` tells these names, except for the
    last of a path, which is not a layer's.
    """
    layers = [layer for layer in sublayers(model) if layer.weights]
    automatic = {name for layer in layers if _base(layer.name) == (name := automatic_name(layer))}
    split = {path: path.split("/") for path in dict.fromkeys(paths)}
    siblings: dict[tuple[str, ...], set[str]] = {}
    for parts in split.values():
        for depth, name in enumerate(parts[:-1]):
            if _base(name) in automatic:
                siblings.setdefault((*parts[:depth], _base(name)), set()).add(name)
    new_names = {
        (*place[:-1], name): f"{place[-1]}_{index}" if index else place[-1]
        for place, names in siblings.items()
        for index, name in enumerate(sorted(names, key=lambda name: (len(name), name)))
    }
    return {
        path: "/".join(
            new_names.get(tuple(parts[: depth + 1]), name) for depth, name in enumerate(parts)
        )
        for path, parts in split.items()
    }


def _base(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def checkpoint_name(path: str, family: str) -> tuple[str, str]:
    """Return a path's (name, layout) in a PyTorch checkpoint: the path itself if none has it."""
    table = TABLES.get(family, Table())
    key = path
    for pattern, replacement in (*GENERIC.replacements, *table.replacements):
        key = re.sub(pattern, replacement, key)
    for row in (*table.rows, *GENERIC.rows):
        if match := re.fullmatch(row.pattern, key):
            return match.expand(row.name).replace("/", "."), row.layout
    return path, "same"


def is_head(name: str) -> bool:
    """Return whether a path or a checkpoint name belongs to a classifier."""
    return re.split(r"[./]", name)[0] in HEADS


def to_keras(array: np.ndarray, layout: str) -> np.ndarray:
    """Return an array of a checkpoint with its axes in Keras's order."""
    if layout == "kernel":
        return array.transpose(_TO_KERAS[array.ndim])
    if layout == "mixing":
        return array[:, :, 0, 0]
    if layout == "stacked":
        return array[:, 0]
    if layout == "depthwise":
        # Outputs of one channel are adjacent in both layouts; the caller splits them.
        return array[:, 0].transpose(1, 2, 0)
    if layout == "map":
        return array.transpose(0, 2, 3, 1).reshape(1, -1, array.shape[1])
    return array


def from_keras(array: np.ndarray, layout: str, grid: tuple[int, int] | None = None) -> np.ndarray:
    """Return a variable's array in the checkpoint's layout; `grid` is used by "map"."""
    if layout == "kernel":
        return array.transpose(np.argsort(_TO_KERAS[array.ndim]))
    if layout == "mixing":
        return array[:, :, None, None]
    if layout == "depthwise":
        return array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)[:, None]
    if layout == "stacked":
        return array[:, None]
    if layout == "map":
        return array.reshape(1, *grid, -1).transpose(0, 3, 1, 2)
    return array


def shape_in_checkpoint(
    shape: tuple[int, ...], layout: str, grid: tuple[int, int] | None = None
) -> tuple[int, ...]:
    """Return the shape in a checkpoint of a variable of shape `shape`."""
    return from_keras(np.broadcast_to(np.float32(0), shape), layout, grid).shape
