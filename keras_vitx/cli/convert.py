"""`keras-vitx convert`: convert weights from one file format to another."""

import re
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Argument, Option

import keras_vitx as kv
from keras_vitx.cli._options import Backend, Overwrite
from keras_vitx.cli._output import check_new, say
from keras_vitx.files import atomic_write

Grid = tuple[int, int]

KINDS = (".weights.h5", ".keras", ".safetensors", ".pth")


def main(
    file: Annotated[
        str,
        Argument(
            help="A weights file (.safetensors, .pth, .weights.h5, .keras, ...), the name of a "
            "checkpoint, or hf://owner/repo."
        ),
    ],
    model: Annotated[
        str, Option(help="The size to which the weights belong (see `keras-vitx list`).")
    ],
    output: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            help="The file to write: .weights.h5 or .keras for Keras; .safetensors or .pth, with "
            "PyTorch's names, for timm.",
        ),
    ],
    image_size: Annotated[
        int | None,
        Option(help="Side of the images in pixels. Default: that of the file, else of the size."),
    ] = None,
    classes: Annotated[
        int | None,
        Option(help="Number of classes; 0 omits the head. Default: that of the file.", min=0),
    ] = None,
    overwrite: Overwrite = False,
    backend: Backend = None,
) -> None:
    """Convert weights between PyTorch and Keras files."""
    if not output.name.endswith(KINDS):
        raise ValueError(f"`--output` must end in one of {', '.join(KINDS)}. Received: {output}.")
    check_new(output, overwrite)
    kv.models.build.constructor_of(model)
    tokens = any(c.name == file and c.distillation_token for c in kv.weights.checkpoints_of(None))
    resolved = kv.weights.resolve(file, model, image_size, distillation_token=tokens)
    network = kv.create_model(model)
    found = _in_file(resolved.path, network)
    if arguments := _arguments(found, network, image_size, classes):
        network = kv.create_model(model, **arguments)
    kv.weights.load(network, resolved)

    digest = kv.weights.hub.hash_of(resolved.path)
    if output.suffix == ".safetensors":
        source = file if file.startswith("hf:") else resolved.path.name
        metadata = {"source": source, "sha256": digest}
        kv.weights.save_safetensors(network, output, metadata=metadata)
    elif output.suffix == ".pth":
        kv.weights.save_torch(network, output)
    else:
        with atomic_write(output) as temporary:
            save = network.save if output.suffix == ".keras" else network.save_weights
            save(temporary)
    for name, value in {
        "model": f"{model}, {network.count_params():,} parameters in {len(network.weights)} arrays",
        "images": " x ".join(map(str, network.input_shape[1:])),
        "head": _head(found.classes, network),
        "positions": _positions(found.grid, _grid(network)),
        "source": f"{resolved.path}\n{'':10} sha256 {digest}",
        "written": f"{output}\n{'':10} sha256 {kv.weights.hub.hash_of(output)}",
    }.items():
        say(f"{name:10} {value}")


class _Found(NamedTuple):
    """What the arrays of a file tell about its model; None if unknown."""

    classes: int | None
    grid: Grid | None
    channels: int | None
    distilled: bool


def _in_file(path: Path, network) -> _Found:
    from keras_vitx.weights.names import checkpoint_name, is_head
    from keras_vitx.weights.positions import square_grid
    from keras_vitx.weights.reading import open_weights

    try:
        with open_weights(path, network) as opened:
            shapes = {name: array.shape for name, array in opened.arrays.items()}
            native, said = opened.native, opened.description
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    heads = [shape for name, shape in shapes.items() if is_head(name) and shape]
    image = network.steps[0].weights[0].path
    kernel = shapes.get(image if native else checkpoint_name(image, network.family)[0], ())
    grid = said.grid if said and said.grid else None
    parts = {name: re.split(r"[./]", name) for name in shapes}
    for name, shape in shapes.items():
        if grid is None and parts[name][0] == "pos_embed":
            # Zero, one or two other tokens precede the patches.
            grids = [square_grid(shape[1] - n) for n in range(3)] if len(shape) == 3 else []
            grid = shape[2:] if len(shape) == 4 else next(filter(None, grids), None)
    return _Found(
        classes=heads[0][-1 if native else 0] if heads else None,
        grid=grid,
        channels=kernel[2 if native else 1] if len(kernel) == 4 else None,
        distilled=any({"dist_token", "head_dist"} & set(own) for own in parts.values()),
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


def _head(classes: int | None, network) -> str:
    """Return what happened to the head of a file with so many classes."""
    from keras_vitx.weights.names import is_head

    if not any(is_head(variable.path) for variable in network.weights):
        return "none" if classes is None else f"left out (of {classes} classes)"
    own = network.output_shape[-1]
    if own == classes:
        return f"kept, {own} classes"
    return f"new, {own} classes with random weights; the file's has {classes}"


def _positions(before: Grid | None, now: Grid | None) -> str:
    if now is None:
        return "none"
    if before in (None, now):
        return f"as they were, {now[0]} x {now[1]}"
    return f"resampled from {before[0]} x {before[1]} to {now[0]} x {now[1]}"


def _grid(network) -> Grid | None:
    grids = [tuple(layer.grid) for layer in network.layers if hasattr(layer, "grid")]
    return grids[0] if grids else None
