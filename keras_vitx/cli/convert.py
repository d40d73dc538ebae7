"""`keras-vitx convert`: convert weights from one file format to another."""

import re
from pathlib import Path
from typing import Any

from typer import Argument, Option

import keras_vitx as kv
from keras_vitx.cli._options import Backend, Overwrite
from keras_vitx.cli._output import check_new, say
from keras_vitx.files import atomic_write
from keras_vitx.positions import Grid

SUFFIXES = (".weights.h5", ".keras", ".safetensors", ".pth")


def main(
    file: str = Argument(
        ...,
        help="A weights file (.safetensors, .pth, .weights.h5, .keras, ...), the name of a "
        "checkpoint, or hf://owner/repo.",
    ),
    model: str = Option(..., help="The size to which the weights belong (see `keras-vitx list`)."),
    output: Path = Option(
        ...,
        "--output",
        "-o",
        help="The file to write: .weights.h5 or .keras for Keras; .safetensors or .pth, with "
        "PyTorch's names, for timm.",
    ),
    image_size: int | None = Option(
        None, help="Side of the images in pixels. Default: the file's, else the size's."
    ),
    classes: int | None = Option(
        None, help="Number of classes; 0 omits the head. Default: the file's.", min=0
    ),
    overwrite: Overwrite = False,
    backend: Backend = None,
) -> None:
    """Convert weights between PyTorch and Keras files."""
    if not output.name.endswith(SUFFIXES):
        raise ValueError(
            f"`--output` must end in one of {', '.join(SUFFIXES)}. Received: {output}."
        )
    check_new(output, overwrite)
    kv.models.build.constructor_of(model)
    tokens = any(c.name == file and c.distillation_token for c in kv.weights.checkpoints_of(None))
    source = kv.weights.resolve(file, model, image_size, distillation_token=tokens)
    network = kv.create_model(model)
    shape, old_classes, old_grid, distilled = _in_file(source.path, network)
    classes = old_classes if classes is None else classes
    arguments: dict[str, Any] = {"distillation_token": True} if distilled else {}
    if image_size is not None:
        shape = (image_size, image_size, shape[2])
    if shape != network.input_shape[1:]:
        arguments["input_shape"] = shape
    if not classes:
        arguments["include_top"] = False
    elif classes != network.output_shape[-1]:
        arguments["classes"] = classes
    if arguments:
        network = kv.create_model(model, **arguments)
    kv.weights.load(network, source)

    path = source.path / "model.weights.h5" if source.path.is_dir() else source.path
    digest = kv.weights.hub.hash_of(path)
    if output.suffix == ".safetensors":
        origin = file if file.startswith("hf:") else source.path.name
        metadata = {"source": origin, "sha256": digest}
        kv.weights.save_safetensors(network, output, metadata=metadata)
    elif output.suffix == ".pth":
        kv.weights.save_torch(network, output)
    else:
        with atomic_write(output) as temporary:
            save = network.save if output.suffix == ".keras" else network.save_weights
            save(temporary)

    head, positions = "none", "none"
    if classes:
        head = f"kept, {classes} classes"
        if classes != old_classes:
            head = f"new, {classes} classes with random weights; the file's has {old_classes}"
    elif old_classes is not None:
        head = f"left out (of {old_classes} classes)"
    if (grid := _grid(network)) is not None:
        positions = f"as they were, {grid[0]} x {grid[1]}"
        if old_grid not in (None, grid):
            positions = f"resampled from {' x '.join(map(str, old_grid))} to {grid[0]} x {grid[1]}"
    for name, value in {
        "model": f"{model}, {network.count_params():,} parameters in {len(network.weights)} arrays",
        "images": " x ".join(map(str, network.input_shape[1:])),
        "head": head,
        "positions": positions,
        "source": f"{source.path}\n{'':10} sha256 {digest}",
        "written": f"{output}\n{'':10} sha256 {kv.weights.hub.hash_of(output)}",
    }.items():
        say(f"{name:10} {value}")


def _in_file(path: Path, network) -> tuple[tuple[int, ...], int | None, Grid | None, bool]:
    """Return the input shape, the classes and the grid of a file, and whether it is distilled.

    The network provides sides and channels that the arrays don't determine; others are None.
    """
    from keras_vitx.positions import square_grid
    from keras_vitx.weights.names import checkpoint_name, is_head
    from keras_vitx.weights.reading import open_weights

    try:
        with open_weights(path, network) as file:
            shapes = {name: array.shape for name, array in file.arrays.items()}
            native = file.native
            grid = file.grid_of("pos_embed")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    heads = [shape for name, shape in shapes.items() if is_head(name) and shape]
    classes = heads[0][-1 if native else 0] if heads else None
    layers = {name: re.split(r"[./]", name) for name in shapes}
    distilled = any({"dist_token", "head_dist"} & set(path) for path in layers.values())

    for name, shape in shapes.items():
        if grid is None and layers[name][0] == "pos_embed":
            # Zero to two other tokens precede the patches.
            grids = [square_grid(shape[1] - n) for n in range(3)] if len(shape) == 3 else []
            grid = shape[2:] if len(shape) == 4 else next(filter(None, grids), None)

    stem, (*sides, channels) = network.layers[0], network.input_shape[1:]
    image = stem.weights[0].path
    kernel = shapes.get(image if native else checkpoint_name(image, network.family)[0], ())
    if len(kernel) == 4:
        channels = kernel[2 if native else 1]
    if grid not in (None, _grid(network)):
        stride = getattr(stem, "stride", None) or stem.patch_size
        sides = [(n - 1) * stride + stem.patch_size for n in grid]
    return (*sides, channels), classes, grid, distilled


def _grid(network) -> Grid | None:
    grids = [tuple(layer.grid) for layer in network.layers if hasattr(layer, "grid")]
    return grids[0] if grids else None
