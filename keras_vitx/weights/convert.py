"""Strict conversion between the arrays of a file and the variables of a model."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.weights.names import (
    IGNORED,
    Sizes,
    checkpoint_name,
    from_keras,
    is_head,
    looks_like,
    shape_in_checkpoint,
    to_keras,
)
from keras_vitx.weights.positions import Grid, resample, square_grid
from keras_vitx.weights.reading import Tensors

RGB = 3

# Variables that an argument of the model adds or removes.
OPTIONS = {
    "distillation_token": "dist_token|head_dist",
    "dense_head": "aux_head",
    "normalize_maps": "var_norm",
}


@dataclass(frozen=True)
class Conversion:
    """A model's variables and their checked arrays, which iteration reads one at a time."""

    tensors: Tensors
    entries: "list[tuple[_Entry, Grid | None]]"
    head: bool  # Whether the classifier is included.
    classes: int | None  # In the file; None if it has no classifier.

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        for entry, grid in self.entries:
            yield entry.variable, _read(entry, grid, self.tensors)


class _Entry(NamedTuple):
    """A variable, and the name, layout and shape of its array in a file."""

    variable: Any
    name: str
    layout: str
    shape: tuple[int, ...]
    positions: Any  # The layer, of position embeddings.
    on_image: bool  # Whether it is the kernel of the convolution on the image.


def convert(tensors: Tensors, model, sizes: Sizes | None = None) -> Conversion:
    """Match every variable of a model with its array in a file, by the family's rename table.

    Position embeddings are resampled, and the first kernel is adapted to the image channels. A
    classifier with another number of classes is skipped. Any other difference raises a ValueError
    that lists all missing, unexpected and misshapen arrays, with the size in the file according to
    `sizes`.
    """
    entries = _entries(model, tensors.native)
    shapes = {name: shape for name, shape in tensors.shapes.items() if not name.endswith(IGNORED)}

    heads = [entry for entry in entries if is_head(entry.name)]
    classes, same = _classes(heads, shapes, axis=-1 if tensors.native else 0)
    if not heads or not same:
        entries = [entry for entry in entries if not is_head(entry.name)]
        shapes = {name: shape for name, shape in shapes.items() if not is_head(name)}

    missing = [entry.name for entry in entries if entry.name not in shapes]
    extra = sorted(set(shapes) - {entry.name for entry in entries})
    wrong: dict[str, str] = {}
    found = []
    for entry in entries:
        if entry.name not in shapes:
            continue
        shape = shapes[entry.name]
        grid = _grid(entry, shape, tensors)
        if not tensors.is_floating(entry.name):
            wrong[entry.name] = f"{tensors.dtypes[entry.name]} and not floating-point numbers"
        elif grid is None and shape != entry.shape and not _reads_rgb(entry, shape):
            wrong[entry.name] = f"{shape} in the file, {entry.shape} in the model"
        else:
            found.append((entry, grid))
    if missing or extra or wrong:
        raise ValueError(_complaint(missing, extra, wrong, len(entries), tensors, model, sizes))
    return Conversion(tensors, found, head=bool(heads) and same, classes=classes)


def to_checkpoint(model) -> dict[str, np.ndarray]:
    """Return a model's weights, float32, by the names and in the layouts of PyTorch checkpoints.

    Raises:
        ValueError: if a variable has no name in the family's checkpoints.
    """
    arrays = {}
    for entry in _entries(model, native=False):
        array = np.asarray(keras.ops.convert_to_numpy(entry.variable.value), "float32")
        grid = entry.positions and tuple(entry.positions.grid)
        arrays[entry.name] = np.ascontiguousarray(from_keras(array, entry.layout, grid))
    return arrays


def _entries(model, native: bool) -> list[_Entry]:
    entries = []
    for variable in model.weights:
        try:
            name, layout = checkpoint_name(variable.path, model.family)
        except ValueError:
            if not native:
                raise
            layout = "same"
        positions = grid = None
        if layout in ("positions", "map"):
            positions = model.get_layer(variable.path.split("/")[0])
            grid = tuple(positions.grid)
        if native:
            name, layout = variable.path, "positions" if positions else "same"
        shape = shape_in_checkpoint(tuple(variable.shape), layout, grid)
        # The first layer is the convolution on the image.
        entries.append(_Entry(variable, name, layout, shape, positions, on_image=not entries))
    return entries


def _classes(heads: list[_Entry], shapes: dict, axis: int) -> tuple[int | None, bool]:
    """Return the number of classes in the file, and whether it is that of the model.

    Returns (None, True) if the heads differ in anything else.
    """
    found = {shapes[entry.name][axis] for entry in heads if shapes.get(entry.name)}
    expected = {entry.shape[axis] for entry in heads}
    if len(found) != 1 or len(expected) != 1:
        return None, True
    (classes,) = found
    for entry in heads:
        shape = list(entry.shape)
        shape[axis] = classes
        if shapes.get(entry.name) != tuple(shape):
            return None, True
    return classes, found == expected


def _grid(entry: _Entry, shape: tuple[int, ...], tensors: Tensors) -> Grid | None:
    """Return the grid of position embeddings in the file, or None if there is none."""
    if entry.layout == "map" and len(shape) == 4 and shape[:2] == entry.shape[:2]:
        return shape[2:]
    if entry.layout != "positions" or len(shape) != 3 or shape[::2] != entry.shape[::2]:
        return None
    patches = shape[1] - entry.positions.num_prefix_tokens
    if tensors.description and tensors.description.grid:
        rows, columns = tensors.description.grid
        return (rows, columns) if rows * columns == patches else None
    # PyTorch files don't store their grid: assume a square one, else the model's own.
    same = tuple(entry.positions.grid) if shape == entry.shape else None
    return (same or square_grid(patches)) if tensors.native else (square_grid(patches) or same)


def _reads_rgb(entry: _Entry, shape: tuple[int, ...]) -> bool:
    """Return whether a kernel differs only in reading the three channels of color images."""
    axis = 1 if entry.layout == "kernel" else 2
    rgb = (*entry.shape[:axis], RGB, *entry.shape[axis + 1 :])
    return entry.on_image and shape == rgb


def _read(entry: _Entry, grid: Grid | None, tensors: Tensors) -> np.ndarray:
    """Return an array of a file in the layout and the shape of its variable."""
    array = to_keras(tensors.read(entry.name), entry.layout)
    if entry.on_image:
        array = kernel_for(array, entry.variable.shape[-2])
    if grid is None:
        return array.reshape(entry.variable.shape)
    layer = entry.positions
    return resample(array, grid, tuple(layer.grid), layer.num_prefix_tokens)


def kernel_for(kernel: np.ndarray, channels: int) -> np.ndarray:
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
    repeated = np.take(kernel, np.arange(channels) % rgb, axis=-2)
    return repeated * np.float32(rgb / channels)


def _complaint(missing, extra, wrong, count: int, tensors: Tensors, model, sizes) -> str:
    said = [f"The file doesn't fit the model {model.name!r}."]
    if tensors.description and tensors.description.model != model.name:
        said.append(f"It says it was saved from {tensors.description.model!r}.")
    if len(missing) + len(wrong) > count / 2:
        said.append(f"It looks like {looks_like(tensors.shapes, sizes)}.")
    if missing and all(is_head(name) for name in missing):
        said.append("It has no classifier: build the model with include_top=False.")
    for argument, mark in OPTIONS.items():
        for names, value in ((extra, True), (missing, False)):
            if names and all(re.search(mark, name) for name in names):
                said.append(f"Build the model with {argument}={value}.")
    if wrong and all(name.startswith("patch_embed") for name in wrong):
        said.append("It has other patches or channels (patch_size, input_shape).")
    lines = [" ".join(said)]
    for names, what in ((missing, "missing from the file"), (extra, "not in the model")):
        if names:
            lines.append(f"- {len(names)} {what}: {', '.join(abbreviated(names))}")
    if wrong:
        alike: dict[str, list[str]] = {}
        for name, how in wrong.items():
            alike.setdefault(how, []).append(name)
        listed = [f"{', '.join(abbreviated(names))} is {how}" for how, names in alike.items()]
        lines.append(f"- {len(wrong)} of another shape or kind: {'; '.join(listed)}")
    return "\n".join(lines)


def abbreviated(names: Iterable[str]) -> list[str]:
    """Merge names that differ in a layer's index only, as in blocks.{0-2}.norm1.bias."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        # The number after "blocks." in a checkpoint, after "blocks_" in Keras.
        match = re.match(r"(.*?[._])(\d+)([./].*)", name)
        if match:
            groups.setdefault((match[1], match[3]), []).append(int(match[2]))
        else:
            groups[name, ""] = []
    written = []
    for (start, end), numbers in groups.items():
        numbers.sort()
        if len(numbers) < 3:
            written += [f"{start}{number}{end}" for number in numbers] or [start]
        elif numbers[-1] - numbers[0] == len(numbers) - 1:
            written.append(f"{start}{{{numbers[0]}-{numbers[-1]}}}{end}")
        else:
            written.append(f"{start}{{{','.join(map(str, numbers))}}}{end}")
    return written
