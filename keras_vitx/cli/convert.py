"""`keras-vitx convert`: convert weights from one file format to another."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import keras_vitx as kv
from keras_vitx.cli._options import Backend, Overwrite
from keras_vitx.cli._output import check_new, say
from keras_vitx.files import atomic_write

Grid = tuple[int, int]

KINDS = (".weights.h5", ".keras", ".safetensors", ".pth")


def main(
    file: Annotated[
        str,
        typer.Argument(
            help="A weights file (.safetensors, .pth, .weights.h5, .keras, ...), the name of a "
            "checkpoint, or hf://owner/repo."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The size to which the weights belong (see `keras-vitx list`).")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .weights.h5 or .keras for Keras; .safetensors or .pth, with "
            "PyTorch's names, for timm.",
        ),
    ],
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the images in pixels. Default: that of the file, else of the size."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(help="Number of classes; 0 omits the head. Default: that of the file.", min=0),
    ] = None,
    overwrite: Overwrite = False,
    backend: Backend = None,
) -> None:
    """Convert weights between PyTorch and Keras files, and report what was done."""
    if not output.name.endswith(KINDS):
        raise ValueError(f"`--output` should end in one of: {', '.join(KINDS)}; got {output}.")
    check_new(output, overwrite)
    kv.models.build.constructor_of(model)
    tokens = any(c.name == file and c.distillation_token for c in kv.weights.checkpoints_of(None))
    resolved = kv.weights.resolve(file, model, image_size, distillation_token=tokens)
    network = kv.models.create_model(model)
    found = _look(resolved.path, network)
    arguments = _arguments(found, network, image_size, classes)
    if arguments:
        network = kv.models.create_model(model, **arguments)
    kv.weights.load(network, resolved)

    digest = kv.weights.hub.hash_of(resolved.path)
    source = file if file.startswith("hf:") else resolved.path.name
    _write(network, output, {"source": source, "sha256": digest})
    for name, value in {
        "model": f"{model}, {network.count_params():,} parameters in {len(network.weights)} arrays",
        "images": " x ".join(map(str, network.input_shape[1:])),
        "head": _head(found, network),
        "positions": _positions(found, network),
        "source": f"{resolved.path}\nsha256 {digest}",
        "written": f"{output}\nsha256 {kv.weights.hub.hash_of(output)}",
    }.items():
        first, *more = value.splitlines()
        say(f"{name:10} {first}")
        for line in more:
            say(f"{'':10} {line}")


@dataclass(frozen=True)
class _Found:
    """What the arrays of a file tell about its model; None if unknown.

    Attributes:
        classes: Number of classes of the head.
        grid: Rows and columns of the position embeddings.
        channels: Number of channels of the images.
        distilled: Whether there is a distillation token.
    """

    classes: int | None
    grid: Grid | None
    channels: int | None
    distilled: bool


def _look(path: Path, network) -> _Found:
    from keras_vitx.weights.names import checkpoint_name, is_head
    from keras_vitx.weights.positions import square_grid
    from keras_vitx.weights.reading import open_weights

    try:
        with open_weights(path, network) as tensors:
            shapes, native, said = dict(tensors.shapes), tensors.native, tensors.description
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    heads = [shape for name, shape in shapes.items() if is_head(name) and shape]
    parts = {part for name in shapes for part in re.split(r"[./]", name)}
    image = network.steps[0].weights[0].path
    kernel = shapes.get(image if native else checkpoint_name(image, network.family)[0], ())
    grid = said.grid if said and said.grid else None
    for name, shape in shapes.items():
        if grid is None and re.split(r"[./]", name)[0] == "pos_embed":
            # Zero, one or two other tokens precede the patches.
            grids = [square_grid(shape[1] - n) for n in range(3)] if len(shape) == 3 else []
            grid = shape[2:] if len(shape) == 4 else next(filter(None, grids), None)
    return _Found(
        classes=heads[0][-1 if native else 0] if heads else None,
        grid=grid,
        channels=kernel[2 if native else 1] if len(kernel) == 4 else None,
        distilled=bool(parts & {"dist_token", "head_dist"}),
    )


def _arguments(found: _Found, network, image_size: int | None, classes: int | None) -> dict:
    """Return the arguments of the model that differ from its defaults."""
    arguments = {}
    shape = network.input_shape[1:]
    wanted = (*shape[:2], found.channels or shape[2])
    if image_size is not None:
        wanted = (image_size, image_size, wanted[2])
    elif found.grid not in (None, _grid(network)):
        stem = network.steps[0]
        stride = getattr(stem, "stride", None) or stem.patch_size
        wanted = (*((n - 1) * stride + stem.patch_size for n in found.grid), wanted[2])
    if wanted != shape:
        arguments["input_shape"] = wanted
    classes = found.classes if classes is None else classes
    if not classes:
        arguments["include_top"] = False
    elif classes != network.output_shape[-1]:
        arguments["classes"] = classes
    if found.distilled:
        arguments["distillation_token"] = True
    return arguments


def _write(network, output: Path, metadata: dict[str, str]) -> None:
    if output.suffix == ".safetensors":
        kv.weights.save_safetensors(network, output, metadata=metadata)
    elif output.suffix == ".pth":
        kv.weights.save_torch(network, output)
    else:
        with atomic_write(output) as temporary:
            save = network.save if output.suffix == ".keras" else network.save_weights
            save(temporary)


def _head(found: _Found, network) -> str:
    from keras_vitx.weights.names import is_head

    if not any(is_head(variable.path) for variable in network.weights):
        return "none" if found.classes is None else f"left out (of {found.classes} classes)"
    classes = network.output_shape[-1]
    if classes == found.classes:
        return f"kept, {classes} classes"
    return f"new, {classes} classes with random weights; the file's has {found.classes}"


def _positions(found: _Found, network) -> str:
    own = _grid(network)
    if own is None:
        return "none"
    if found.grid in (None, own):
        return f"as they were, {own[0]} x {own[1]}"
    return f"resampled from {found.grid[0]} x {found.grid[1]} to {own[0]} x {own[1]}"


def _grid(network) -> Grid | None:
    grids = [tuple(layer.grid) for layer in network.layers if hasattr(layer, "grid")]
    return grids[0] if grids else None
