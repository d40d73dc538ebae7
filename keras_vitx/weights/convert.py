"""Strict conversion between the arrays of a file and the variables of a model."""

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.positions import Grid, resample, square_grid
from keras_vitx.weights.names import (
    IGNORED,
    Sizes,
    checkpoint_name,
    from_keras,
    identify,
    is_head,
    shape_in_checkpoint,
    to_keras,
    weights_of,
)
from keras_vitx.weights.reading import StoredArray, WeightsFile

logger = logging.getLogger("keras_vitx")

RGB = 3

# Floating-point types, as NumPy, PyTorch, Keras and safetensors spell them.
FLOATING = re.compile("(bfloat|float|bf|f)(16|32|64)", re.IGNORECASE)

# Types of quantized weights, likewise.
QUANTIZED = re.compile("[iu]8|q?u?int[48]|q?u?int4x2|(f8|float8).*", re.IGNORECASE)

# Variables that an argument of the model adds or removes.
OPTIONS = {
    "distillation_token": "dist_token|head_dist",
    "dense_head": "aux_head",
    "normalize_maps": "var_norm",
}


class Conversion(NamedTuple):
    """The arrays of a file that fit a model."""

    arrays: Iterator[tuple[Any, np.ndarray]]  # Each variable with its array, read lazily.
    head: bool  # Whether `arrays` includes the classifier.
    classes: int | None  # Number in the file; None without a classifier.
    started: tuple[str, ...] = ()  # Names of the variables that the file does not have.
    unused: tuple[str, ...] = ()  # Names of the arrays that the model does not have.


class _Entry(NamedTuple):
    """A variable, and the name, layout and shape of its array in a file."""

    variable: Any
    name: str
    layout: str
    shape: tuple[int, ...]
    positions: Any  # The layer, of position embeddings.
    on_image: bool  # Whether it is the kernel of the convolution on the image.


def convert(
    file: WeightsFile, model, sizes: Sizes | None = None, strict: bool = True
) -> Conversion:
    """Match every variable of a model with its array in a file, by the family's rename table.

    Position embeddings are resampled, and the first kernel is adapted to the image channels. A
    classifier with another number of classes is skipped. Any other difference raises a ValueError
    that lists all missing, unexpected and misshapen arrays, and the size in `sizes` that the file
    looks like; unless `strict`, only misshapen ones, and a file that fits nothing.
    """
    entries = _entries(model, file)
    ignored = (*IGNORED, "/grid") if file.native else IGNORED
    arrays = {name: array for name, array in file.arrays.items() if not name.endswith(ignored)}

    heads = [entry for entry in entries if is_head(entry.name)]
    classes = _classes(heads, arrays, file.native)
    model_classes = _classes(heads, {entry.name: entry for entry in heads}, file.native)
    has_head = bool(heads) and not file.headless and classes in (None, model_classes)
    if not has_head:
        entries = [entry for entry in entries if not is_head(entry.name)]
        arrays = {name: array for name, array in arrays.items() if not is_head(name)}

    missing = [entry.name for entry in entries if entry.name not in arrays]
    extra = sorted(arrays.keys() - {entry.name for entry in entries})
    wrong: dict[str, str] = {}
    matches: list[tuple[_Entry, StoredArray, Grid | None]] = []
    for entry in entries:
        if (array := arrays.get(entry.name)) is None:
            continue
        grid = _grid(entry, array.shape, file)
        if not FLOATING.fullmatch(array.dtype):
            wrong[entry.name] = f"{array.dtype} and not floating-point numbers"
        elif grid is None and array.shape != entry.shape and not _reads_rgb(entry, array.shape):
            wrong[entry.name] = f"{array.shape} in the file, {entry.shape} in the model"
        else:
            matches.append((entry, array, grid))
    if wrong or not matches or (strict and (missing or extra)):
        message = _mismatch(missing, extra, wrong, entries, file, model, sizes)
        raise ValueError(message)
    values = ((entry.variable, _read(entry, array, grid)) for entry, array, grid in matches)
    has_head = has_head and all(not is_head(name) for name in missing)
    return Conversion(values, has_head, classes, tuple(missing), tuple(extra))


def to_checkpoint(model) -> dict[str, np.ndarray]:
    """Return a model's weights, float32, by the names and in the layouts of PyTorch checkpoints.

    Raises:
        ValueError: if a variable has no name in the family's checkpoints.
    """
    arrays = {}
    for entry in _entries(model):
        array = np.asarray(keras.ops.convert_to_numpy(entry.variable.value), "float32")
        grid = entry.positions and tuple(entry.positions.grid)
        arrays[entry.name] = np.ascontiguousarray(from_keras(array, entry.layout, grid))
    return arrays


def has_checkpoint_names(model) -> bool:
    """Return whether all variables have PyTorch names; those of LoRA and quantization don't."""
    try:
        names = {entry.name for entry in _entries(model)}
    except (ValueError, KeyError):  # No name, or a kernel of another rank.
        return False
    return len(names) == len(model.weights)


def _entries(model, file: WeightsFile | None = None) -> list[_Entry]:
    """Return an entry per variable; for a file, by its path where no checkpoint has a name."""
    entries, native = [], file is not None and file.native
    for variable, path, layer in weights_of(model):
        try:
            name, layout = checkpoint_name(path, model.family)
        except ValueError:
            if file is None:
                raise
            name, layout = path, "same"
        if file is not None and layout == "kernel" and len(variable.shape) not in (2, 4):
            layout = "same"  # Of a layer that no checkpoint has.
        if variable.name == "embeddings" and hasattr(layer, "num_prefix_tokens"):
            layout = "positions" if layout == "same" else layout
        is_position = layout in ("positions", "map")
        positions, grid = (layer, tuple(layer.grid)) if is_position else (None, None)
        if native:
            name, layout = path, "positions" if positions else "same"
        shape = shape_in_checkpoint(tuple(variable.shape), layout, grid)
        # The first layer is the convolution on the image.
        entries.append(_Entry(variable, name, layout, shape, positions, on_image=not entries))
    return entries


def _classes(heads: list[_Entry], arrays: dict[str, StoredArray], native: bool) -> int | None:
    """Return the number of classes in the file; None if its heads differ in anything else."""
    classes, others = (-1, slice(-1)) if native else (0, slice(1, None))
    counts = set()
    for entry in heads:
        shape = arrays[entry.name].shape if entry.name in arrays else ()
        if not shape or shape[others] != entry.shape[others]:
            return None
        counts.add(shape[classes])
    return counts.pop() if len(counts) == 1 else None


def _grid(entry: _Entry, shape: tuple[int, ...], file: WeightsFile) -> Grid | None:
    """Return the grid of position embeddings in the file, or None if there is none."""
    if entry.layout == "map" and len(shape) == 4 and shape[:2] == entry.shape[:2]:
        return shape[2:]
    if entry.layout != "positions" or len(shape) != 3 or shape[::2] != entry.shape[::2]:
        return None
    patches, own = shape[1] - entry.positions.num_prefix_tokens, tuple(entry.positions.grid)
    known = file.grid_of(entry.name.rpartition("/")[0])
    if known:
        rows, columns = known
        return (rows, columns) if rows * columns == patches else None
    square = square_grid(patches)
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


def _other_images(entry: _Entry, shape: tuple[int, ...]) -> Iterator[str]:
    """Tell in which images the convolution in a file differs from the model's, and how to adapt."""
    if len(shape) == 4:
        in_keras = to_keras(np.broadcast_to(np.float32(0), shape), entry.layout).shape
        (*sides, channels, _), (*own_sides, own_channels, _) = in_keras, entry.variable.shape
        if channels != own_channels:
            counts = f"{channels} channels, the model's {own_channels}"
            yield f"Its images have {counts} (input_shape)."
        if sides != own_sides:
            old, new = (" x ".join(map(str, pair)) for pair in (sides, own_sides))
            yield f"Its patches have {old} pixels, the model's {new} (patch_size)."


def _read(entry: _Entry, array: StoredArray, grid: Grid | None) -> np.ndarray:
    """Return an array of a file in the layout and the shape of its variable."""
    values = to_keras(array.read().astype("float32", copy=False), entry.layout)
    if entry.on_image:
        values = _for_channels(values, entry.variable.shape[-2])
    if grid is None:
        return values.reshape(entry.variable.shape)
    layer = entry.positions
    return resample(values, grid, tuple(layer.grid), layer.num_prefix_tokens)


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


def _mismatch(missing, extra, wrong, entries, file: WeightsFile, model, sizes) -> str:
    """Return the message of the error that lists all arrays that don't match."""
    summary = [f"The file doesn't fit the model {model.name!r}."]
    arrays = file.arrays
    quantized = {arrays[name].dtype for name in wrong if QUANTIZED.fullmatch(arrays[name].dtype)}
    if quantized:
        summary.append(
            f"It is quantized ({', '.join(sorted(quantized))}): give the weights from before "
            "quantization, or load the whole model with keras_vitx.load."
        )
    if file.description and file.description.model != model.name:
        summary.append(f"It says it was saved from {file.description.model!r}.")
    if len(missing) + len(wrong) > len(entries) / 2:
        identity = identify({name: array.shape for name, array in file.arrays.items()})
        known = sizes(identity.family) if identity and sizes else {}
        name = next((name for name, other in known.items() if other == identity), None)
        summary.append(f"It looks like {name or identity or 'another architecture'}.")
    if missing and all(is_head(name) for name in missing):
        summary.append(
            "It has no classifier: build with include_top=False, or strict=False, which starts one."
        )
    for argument, mark in OPTIONS.items():
        for names, value in ((extra, True), (missing, False)):
            if names and all(re.search(mark, name) for name in names):
                summary.append(f"Build the model with {argument}={value}.")
    if entries[0].on_image and entries[0].name in wrong:
        summary += _other_images(entries[0], arrays[entries[0].name].shape)
    lines = [" ".join(summary)]
    for names, problem in ((missing, "missing from the file"), (extra, "not in the model")):
        if names:
            lines.append(f"- {len(names)} {problem}: {', '.join(abbreviate(names))}")
    if wrong:
        groups: dict[str, list[str]] = {}
        for name, problem in wrong.items():
            groups.setdefault(problem, []).append(name)
        items = [
            f"{', '.join(abbreviate(names))} is {problem}" for problem, names in groups.items()
        ]
        lines.append(f"- {len(wrong)} of another shape or kind: {'; '.join(items)}")
    return "\n".join(lines)


def abbreviate(names: Iterable[str]) -> list[str]:
    """Merge names that differ in a layer's index only, as in blocks.{0-2}.norm1.bias."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        # The number after "blocks." in a checkpoint, after "blocks_" in Keras.
        start, *rest = re.split(r"(?<=[._])(\d+)(?=[./])", name, maxsplit=1)
        number, end = rest or ("", "")
        groups.setdefault((start, end), []).append(number)
    merged = []
    for (start, end), numbers in groups.items():
        if len(numbers) < 3:
            merged += [f"{start}{number}{end}" for number in numbers]
            continue
        indices = sorted(map(int, numbers))
        first, last = indices[0], indices[-1]
        is_range = last - first == len(indices) - 1
        inside = f"{first}-{last}" if is_range else ",".join(map(str, indices))
        merged.append(f"{start}{{{inside}}}{end}")
    return merged
