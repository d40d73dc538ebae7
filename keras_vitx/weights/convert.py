"""Strict conversion between the arrays of a file and the variables of a model."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from keras_vitx.weights.names import (
    IGNORED,
    Identity,
    Sizes,
    checkpoint_name,
    from_keras,
    identify,
    is_head,
    looks_like,
    shape_in_checkpoint,
    to_keras,
)
from keras_vitx.weights.positions import Grid, resample, square_grid
from keras_vitx.weights.reading import Tensors

# Layouts of arrays that depend on the grid of patches.
POSITIONS = ("positions", "map")

RGB = 3


@dataclass(frozen=True)
class Conversion:
    """Checked arrays for the variables of a model, read lazily, one at a time.

    Attributes:
        pairs: Pairs of a variable and a function that returns its array (float32, of the
            variable's shape).
        head: Whether the classifier is included.
        classes: Number of classes in the file; None if it has no classifier.
    """

    pairs: list[tuple[Any, Callable[[], np.ndarray]]]
    head: bool
    classes: int | None

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        for variable, read in self.pairs:
            yield variable, read()


@dataclass(frozen=True)
class _Entry:
    """A variable, and the name, layout and shape of its array in a file."""

    variable: Any
    name: str
    layout: str
    shape: tuple[int, ...]
    on_image: bool = False


def convert(tensors: Tensors, model, sizes: Sizes | None = None) -> Conversion:
    """Match every variable of a model with its array in a file.

    Names and axes follow the family's rename table. Position embeddings are resampled
    to the model's grid, and the kernel of the first convolution is adapted to the
    model's image channels. The classifier is skipped if its number of classes differs
    or if the model has none. Any other difference is an error.

    Args:
        tensors: An opened file.
        model: A built model.
        sizes: The identity of each known size, used to name one in errors.

    Returns:
        A `Conversion`. Arrays are read only when it is iterated over.

    Raises:
        ValueError: if arrays are missing, unexpected or of another shape; the message
            lists all of them.
    """
    entries = [_entry(variable, model, tensors.native) for variable in model.weights]
    # The first layer is the convolution on the image.
    entries[0] = replace(entries[0], on_image=True)
    shapes = {name: shape for name, shape in tensors.shapes.items() if not name.endswith(IGNORED)}

    heads = [entry for entry in entries if is_head(entry.name)]
    classes = _classes(heads, shapes, axis=-1 if tensors.native else 0)
    differs = classes is not None and classes[0] != classes[1]
    if differs or not heads:
        entries = [entry for entry in entries if not is_head(entry.name)]
        shapes = {name: shape for name, shape in shapes.items() if not is_head(name)}

    missing = [entry.name for entry in entries if entry.name not in shapes]
    extra = sorted(set(shapes) - {entry.name for entry in entries})
    wrong: dict[str, str] = {}
    pairs = []
    for entry in entries:
        if entry.name not in shapes:
            continue
        shape = shapes[entry.name]
        grid = _grid(entry, shape, tensors, model)
        if not tensors.is_floating(entry.name):
            wrong[entry.name] = f"{tensors.dtypes[entry.name]} and not floating-point numbers"
        elif grid is None and shape != entry.shape and not _reads_rgb(entry, shape):
            wrong[entry.name] = f"{shape} in the file, {entry.shape} in the model"
        else:
            pairs.append((entry.variable, _reader(entry, grid, tensors, model)))
    if missing or extra or wrong:
        raise ValueError(_complaint(missing, extra, wrong, len(entries), tensors, model, sizes))
    return Conversion(
        pairs, head=bool(heads) and not differs, classes=classes[0] if classes else None
    )


def to_checkpoint(model) -> dict[str, np.ndarray]:
    """Return a model's weights with the names and layouts of PyTorch checkpoints.

    Args:
        model: A built model of this package.

    Returns:
        float32 arrays by name.

    Raises:
        ValueError: if a variable has no name in the family's checkpoints.
    """
    return {
        entry.name: np.ascontiguousarray(
            from_keras(
                np.asarray(keras.ops.convert_to_numpy(entry.variable.value), "float32"),
                entry.layout,
                _own_grid(entry, model),
            )
        )
        for entry in (_entry(variable, model, native=False) for variable in model.weights)
    }


def _entry(variable, model, native: bool) -> _Entry:
    try:
        name, layout = checkpoint_name(variable.path, model.family)
    except ValueError:
        if not native:
            raise
        layout = "same"
    if native:
        name, layout = variable.path, "positions" if layout in POSITIONS else "same"
    entry = _Entry(variable, name, layout, tuple(variable.shape))
    return replace(entry, shape=shape_in_checkpoint(entry.shape, layout, _own_grid(entry, model)))


def _classes(heads: list[_Entry], shapes: dict, axis: int) -> tuple[int, int] | None:
    """Return (classes in the file, classes in the model) if the heads differ in nothing else."""
    found = {shapes[entry.name][axis] for entry in heads if shapes.get(entry.name)}
    expected = {entry.shape[axis] for entry in heads}
    if len(found) != 1 or len(expected) != 1:
        return None
    found, expected = found.pop(), expected.pop()
    for entry in heads:
        shape = list(entry.shape)
        shape[axis] = found
        if shapes.get(entry.name) != tuple(shape):
            return None
    return found, expected


def _grid(entry: _Entry, shape: tuple[int, ...], tensors: Tensors, model) -> Grid | None:
    """Return the grid of position embeddings in the file, or None if there is none."""
    if entry.layout == "map" and len(shape) == 4 and shape[:2] == entry.shape[:2]:
        return shape[2:]
    if entry.layout != "positions" or len(shape) != 3 or shape[::2] != entry.shape[::2]:
        return None
    layer = _positions(entry, model)
    patches = shape[1] - layer.num_prefix_tokens
    if tensors.description and tensors.description.grid:
        rows, columns = tensors.description.grid
        return (rows, columns) if rows * columns == patches else None
    # PyTorch files don't store their grid: assume a square one, else the model's own.
    same = tuple(layer.grid) if shape == entry.shape else None
    return (same or square_grid(patches)) if tensors.native else (square_grid(patches) or same)


def _own_grid(entry: _Entry, model) -> Grid | None:
    """Return the grid of position embeddings in the model; None for other arrays."""
    return tuple(_positions(entry, model).grid) if entry.layout in POSITIONS else None


def _positions(entry: _Entry, model):
    return model.get_layer(entry.variable.path.split("/")[0])


def _reads_rgb(entry: _Entry, shape: tuple[int, ...]) -> bool:
    """Return whether a kernel differs only in reading the three channels of color images."""
    axis = 1 if entry.layout == "kernel" else 2
    rgb = (*entry.shape[:axis], RGB, *entry.shape[axis + 1 :])
    return entry.on_image and shape == rgb


def _reader(entry: _Entry, grid: Grid | None, tensors: Tensors, model):
    def read() -> np.ndarray:
        array = to_keras(tensors.read(entry.name), entry.layout)
        if entry.on_image:
            array = kernel_for(array, entry.variable.shape[-2])
        if grid is None:
            return array.reshape(entry.variable.shape)
        layer = _positions(entry, model)
        return resample(array, grid, tuple(layer.grid), layer.num_prefix_tokens)

    return read


def kernel_for(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapt the kernel of a convolution on color images to `channels` channels, as timm does.

    For one channel the kernel is summed over its input channels, which equals a gray image
    repeated in all three. For other counts the input channels are repeated cyclically and
    scaled by 3 / channels, so that the magnitude of the outputs is kept.

    Args:
        kernel: (height, width, 3, outputs).
        channels: Number of image channels.

    Returns:
        (height, width, channels, outputs).
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
        widths = {found.dim for found in (identify(tensors.shapes), _identity(model)) if found}
        if model.family == "DeepViT" and widths == {408, 420}:
            said.append("DeepViT-L is 408 wide in its paper's text, 420 in Table 7: give `dim`.")
    if missing and all(is_head(name) for name in missing):
        said.append("It has no classifier: build the model with include_top=False.")
    for mark, argument in (("dist_token", "distillation_token"), ("aux_head", "dense_head")):
        for names, value in ((extra, True), (missing, False)):
            if any(mark in name for name in names):
                said.append(f"Build the model with {argument}={value}.")
    for names, value in ((extra, True), (missing, False)):
        if names and all(".var_norm." in name or "/var_norm/" in name for name in names):
            has = "a" if value else "no"
            said.append(
                f"Its re-attention has {has} normalization (var_norm): build the model with "
                f"normalize_maps={value}."
            )
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


def _identity(model) -> Identity | None:
    return identify({variable.path: tuple(variable.shape) for variable in model.weights})


def abbreviated(names: Iterable[str]) -> list[str]:
    """Merge names that differ only in the index of a layer.

    Example:
        blocks.0.norm1.bias, blocks.1.norm1.bias, blocks.2.norm1.bias
        become blocks.{0-2}.norm1.bias.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        # The number after "blocks." in a checkpoint, after "blocks_" in Keras.
        match = re.match(r"(.*?[._])(\d+)([./].*)", name)
        start, number, end = match.groups() if match else (name, "-1", "")
        groups.setdefault((start, end), []).append(int(number))
    written = []
    for (start, end), numbers in groups.items():
        numbers.sort()
        if numbers == [-1]:
            written.append(start)
        elif len(numbers) < 3:
            written.extend(f"{start}{number}{end}" for number in numbers)
        else:
            written.append(f"{start}{{{_ranges(numbers)}}}{end}")
    return written


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
