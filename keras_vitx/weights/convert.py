"""Strict conversion between the arrays of a file and the variables of a model."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.positions import Grid, resample
from keras_vitx.text import shorten
from keras_vitx.weights.catalog import CONSTRUCTORS
from keras_vitx.weights.names import (
    IGNORED,
    TABLES,
    Table,
    checkpoint_name,
    from_keras,
    is_head,
    renumber,
    shape_in_checkpoint,
    to_keras,
    weights_of,
)
from keras_vitx.weights.reading import StoredArray, WeightsFile, with_positions
from keras_vitx.weights.transformers import apart

logger = logging.getLogger("keras_vitx")

RGB = 3

# At the end of a table of relative positions, of tokens before the patches.
PREFIX_ROWS = 3

# Floating-point types, as NumPy, PyTorch and safetensors spell them.
FLOATING = re.compile("(bfloat|float|bf|f)(16|32|64)", re.IGNORECASE)


class Conversion(NamedTuple):
    """The arrays of a file that fit a model."""

    arrays: Iterator[tuple[Any, np.ndarray]]  # Each variable with its array, read lazily.
    head: bool | None  # Whether `arrays` includes the classifier; None if the model has none.
    started: list[str]  # Names of the variables that the file does not have.
    unused: list[str]  # Names of the arrays that the model does not have.


class _Entry(NamedTuple):
    """A variable, and the name, layout and shape of its array in a file."""

    variable: Any
    name: str
    layout: str
    shape: tuple[int, ...]
    positions: Any  # The layer, of position embeddings.
    on_image: bool  # Whether it is the kernel of the convolution on the image.
    index: int  # Number of entries of that name before, which a stacked array holds.


def convert(file: WeightsFile, model, strict: bool = True) -> Conversion:
    """Match every variable of a model with its array in a file, by the family's rename table.

    Position embeddings are resampled, and the first kernel is adapted to the image channels. A
    classifier with another number of classes is skipped. Any other difference raises a ValueError
    that lists the missing, unexpected and misshapen arrays; unless `strict`, only the last ones.
    """
    entries, arrays = _entries(model, file.in_keras), file.arrays
    if file.in_keras:
        arrays = _by_path(arrays, model)
    arrays = {name: array for name, array in arrays.items() if not name.endswith(IGNORED)}
    own_classes = {
        entry.shape[-1 if file.in_keras else 0] for entry in entries if is_head(entry.name)
    }
    has_head = bool(own_classes) and not file.headless and file.classes in (None, *own_classes)
    if not has_head:
        entries = [entry for entry in entries if not is_head(entry.name)]
        arrays = {name: array for name, array in arrays.items() if not is_head(name)}

    own = {_layer(entry.name) for entry in entries}
    of_head = {*TABLES.get(model.family, Table()).of_head} - own
    arrays = {name: array for name, array in arrays.items() if _layer(name) not in of_head}

    for entry in entries:  # A masked bias is 0.
        parts = [entry.name.replace("qkv.bias", f"{letter}_bias") for letter in "qv"]
        if entry.name.endswith("qkv.bias") and entry.name not in arrays and {*parts} <= {*arrays}:
            arrays[entry.name] = _with_zeros(*map(arrays.pop, parts))
    if not strict:
        arrays |= _for_new_registers(entries, arrays, file)
    missing = [entry.name for entry in entries if entry.name not in arrays]
    extra = sorted(arrays.keys() - {entry.name for entry in entries})
    wrong = []
    matches: list[tuple[_Entry, StoredArray, Grid | None]] = []
    for entry in entries:
        if (array := arrays.get(entry.name)) is None:
            continue
        grid = _grid(entry, array.shape, file)
        if not FLOATING.fullmatch(array.dtype):
            wrong.append(f"{entry.name} is {array.dtype} and not floating-point numbers")
        elif grid is None and array.shape != entry.shape and not _reads_rgb(entry, array.shape):
            wrong.append(f"{entry.name} is {array.shape} in the file, {entry.shape} in the model")
        else:
            matches.append((entry, array, grid))
    if wrong or not matches or (strict and (missing or extra)):
        origin = f", saved from a {file.size}," if file.size else ""
        lines = [f"The file{origin} doesn't fit the model {model.name!r}."]
        if missing and all(map(is_head, missing)):
            lines[0] += " It has no classifier: include_top=False, or classes=, which starts one."
        for names, problem in (
            (missing, "missing from the file"),
            (extra, "not in the model"),
            (wrong, "of another shape or kind"),
        ):
            if names:
                lines.append(f"- {len(names)} {problem}: {shorten(names, 8)}")
        if wrong and (sizes := _sizes_of(file.arrays)):
            lines.append(f"Its width, depth and patches are those of {shorten(sizes, 4)}.")
        raise ValueError("\n".join(lines))
    values = ((match[0].variable, _read(*match, file.antialias)) for match in matches)
    head = has_head and not any(map(is_head, missing)) if own_classes else None
    return Conversion(values, head, missing, extra)


def _sizes_of(arrays: dict[str, StoredArray]) -> list[str]:
    """Return the sizes of the width, the depth and the patches of a file with timm's names."""
    patches = arrays.get("patch_embed.proj.weight")
    depth = len({name.split(".")[1] for name in arrays if name.startswith("blocks.")})
    own = patches and (patches.shape[0], depth, patches.shape[-1])
    sizes = {name: {"dim": 0, "patch_size": 16} | c.data for name, c in CONSTRUCTORS.items()}
    return [n for n, d in sizes.items() if own == (d["dim"], d.get("depth"), d["patch_size"])]


def to_checkpoint(model) -> dict[str, np.ndarray]:
    """Return a model's weights, float32, by the names and in the layouts of PyTorch checkpoints.

    A variable that has no name in the family's checkpoints has its path for a name.
    """
    arrays: dict[str, np.ndarray] = {}
    for entry in _entries(model):
        array = np.asarray(keras.ops.convert_to_numpy(entry.variable.value), "float32")
        grid = entry.positions and tuple(entry.positions.grid)
        array = from_keras(array, entry.layout, grid)
        if entry.index:
            array = np.concatenate([arrays[entry.name], array], axis=1)
        arrays[entry.name] = np.ascontiguousarray(array)
    return apart(arrays) if TABLES.get(model.family, Table()).apart else arrays


def grid_of(model) -> Grid | None:
    """Return the rows and columns of a model's position embeddings; None without them."""
    grids = (entry.positions.grid for entry in _entries(model) if entry.positions)
    return next(map(tuple, grids), None)


def _entries(model, in_keras: bool = False) -> list[_Entry]:
    """Return an entry per variable, for a file of PyTorch's or of Keras's names and layouts."""
    entries, counts = [], Counter()
    for variable, path, layer in weights_of(model):
        name, layout = checkpoint_name(path, model.family)
        if layout == "kernel" and len(variable.shape) not in (2, 4):
            layout = "same"  # Of a layer that no checkpoint has.
        positions = layer if layout in ("positions", "map", "offsets") else None
        if in_keras:
            name, layout = path, {"map": "positions"}.get(layout, layout) if positions else "same"
        grid = positions and tuple(positions.grid)
        shape = shape_in_checkpoint(tuple(variable.shape), layout, grid)
        # The first layer is the convolution on the image.
        place = not entries, counts[name]
        entries.append(_Entry(variable, name, layout, shape, positions, *place))
        counts[name] += 1
    return [
        entry._replace(shape=(entry.shape[0], counts[entry.name], *entry.shape[2:]))
        if entry.layout == "stacked"
        else entry
        for entry in entries
    ]


def _with_zeros(query: StoredArray, value: StoredArray) -> StoredArray:
    """Return the bias of queries, keys and values in which that of keys is 0."""

    def read():
        q, v = query.read(), value.read()
        return np.concatenate([q, np.zeros_like(q), v])

    return query._replace(shape=(query.shape[0] * 2 + value.shape[0],), read=read)


def _for_new_registers(
    entries: list[_Entry], arrays: dict[str, StoredArray], file: WeightsFile
) -> dict[str, StoredArray]:
    """Return positions, and class tokens, of a file for a model with registers that it lacks.

    Positions of registers are 0. Those of class tokens that have none are added to them.
    """
    own = {_layer(entry.name): entry for entry in entries}
    registers, positions = own.get("reg_token"), own.get("pos_embed")
    if not registers or not positions or registers.name in arrays or positions.name not in arrays:
        return {}
    tokens = [own[name].name for name in ("cls_token", "dist_token") if name in own]
    stored, new = arrays[positions.name], registers.shape[1]
    if _grid(positions, stored.shape, file):
        return {}
    if not positions.positions.num_prefix_tokens:
        return with_positions(arrays, tokens, positions.name)
    first, places, dim = stored.shape

    def with_zeros():
        return np.insert(stored.read(), [len(tokens)] * new, 0, axis=1)

    return {positions.name: stored._replace(shape=(first, places + new, dim), read=with_zeros)}


def _layer(name: str) -> str:
    """Return the first part of a path or of a checkpoint name."""
    return re.split(r"[./]", name)[0]


def _by_path(arrays: dict[str, StoredArray], model) -> dict[str, StoredArray]:
    """Return the arrays of a Keras file, which numbers those of a layer, by a model's paths."""
    names, counts = {}, Counter()
    for _, path, _ in weights_of(model):
        layer = path.rpartition("/")[0]
        names[f"{layer}/{counts[layer]}"] = path
        counts[layer] += 1
    renumbered = renumber(arrays, model)
    return {names.get(renumbered[name], renumbered[name]): arrays[name] for name in arrays}


def _grid(entry: _Entry, shape: tuple[int, ...], file: WeightsFile) -> Grid | None:
    """Return the grid of position embeddings in the file, or None if there is none."""
    if entry.layout == "map" and len(shape) == 4 and shape[:2] == entry.shape[:2]:
        return shape[2:]
    of_positions = entry.layout in ("positions", "offsets") and len(shape) == len(entry.shape)
    if not of_positions or (*shape[:-2], shape[-1]) != (*entry.shape[:-2], entry.shape[-1]):
        return None
    # A grid has twice as many offsets, less one, along each side.
    factor = 2 if entry.layout == "offsets" else 1
    extra = PREFIX_ROWS if factor == 2 else entry.positions.num_prefix_tokens
    patches, own = shape[-2] - extra, tuple(entry.positions.grid)
    known = file.grid_of(entry.name.rpartition("/")[0])
    if known:
        rows, columns = (factor * side - factor + 1 for side in known)
        return tuple(known) if rows * columns == patches else None
    side = math.isqrt(max(patches, 0))
    square = ((side - 1) // factor + 1,) * 2 if side and side * side == patches else None
    if shape != entry.shape or file.square:
        return square
    if square not in (None, own):
        logger.warning(
            "The file does not say whether its %d positions are %d x %d or %d x %d. They are read "
            "as the former, which the model has. If they are square, build the model for square "
            "images, and call `at_size`.",
            *(patches, *own, *square),
        )
    return own


def _reads_rgb(entry: _Entry, shape: tuple[int, ...]) -> bool:
    """Return whether a kernel differs only in reading the three channels of color images."""
    own = entry.variable.shape
    return entry.on_image and shape == shape_in_checkpoint((*own[:2], RGB, own[-1]), entry.layout)


def _read(entry: _Entry, array: StoredArray, grid: Grid | None, antialias: bool) -> np.ndarray:
    """Return an array of a file in the layout and the shape of its variable."""
    values = array.read().astype("float32", copy=False)
    if entry.layout == "stacked":
        values = values[:, entry.index : entry.index + 1]
    values = to_keras(values, entry.layout)
    if entry.on_image:
        values = _for_channels(values, entry.variable.shape[-2])
    if grid is None:
        return values.reshape(entry.variable.shape)
    return resampled(entry.positions, values, grid, antialias)


def resampled(layer: Any, values: np.ndarray, old: Grid, antialias: bool = True) -> np.ndarray:
    """Return position embeddings, or a table of offsets, of a grid for the one of a layer.

    A table is interpolated linearly between offsets that grow as a geometric series, as in timm.
    """
    if values.ndim == 3:
        return resample(values, old, tuple(layer.grid), layer.num_prefix_tokens, antialias)
    if old == tuple(layer.grid):
        return values
    rows, columns = map(_between_offsets, old, layer.grid)
    table = values[:-PREFIX_ROWS].reshape(rows.shape[1], columns.shape[1], -1)
    table = np.einsum("ai,bj,ijh->abh", rows, columns, table).reshape(-1, values.shape[1])
    return np.concatenate([table, values[-PREFIX_ROWS:]]).astype("float32")


def _between_offsets(old: int, new: int) -> np.ndarray:
    """Return the weights of the offsets along a side of one length for those of another."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:  # The ratio with which the offsets of both end in the same place.
        ratio = (low + high) / 2
        is_far = (1 - ratio ** (old - 1)) / (1 - ratio) > new - 1
        low, high = (low, ratio) if is_far else (ratio, high)
    places = np.cumsum(ratio ** np.arange(old - 1))
    places = np.concatenate([-places[::-1], [0], places])
    rows = np.eye(len(places))
    return np.stack([np.interp(np.arange(1 - new, new), places, row) for row in rows], axis=1)


def _for_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapt a kernel (height, width, 3, outputs) of color images to `channels`, as timm does.

    For one channel it is summed, as if a gray image were repeated in all three; otherwise the
    inputs are repeated cyclically and scaled by 3 / channels, which keeps the magnitude of the
    outputs.
    """
    rgb = kernel.shape[-2]
    if channels == rgb:
        return kernel
    if channels == 1:
        return kernel.sum(axis=-2, keepdims=True)
    return np.take(kernel, np.arange(channels) % rgb, axis=-2) * np.float32(rgb / channels)
