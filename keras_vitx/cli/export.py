"""`keras-vitx export`: a file that runs without this package."""

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import keras_vitx as kv
from keras_vitx.cli._models import is_size, open_model
from keras_vitx.cli._options import Backend, ModelOrFile, Overwrite, Weights
from keras_vitx.cli._output import say

FORMATS = Literal["saved_model", "onnx", "openvino", "litert", "torch", "stablehlo"]
PRECISIONS = Literal["float16", "bfloat16", "int8", "int8-static", "int4"]


def main(
    model: ModelOrFile,
    output: Annotated[Path, typer.Argument(help="File or folder to write.", metavar="PATH")],
    weights: Weights = None,
    format: Annotated[
        FORMATS | None,
        typer.Option(
            help="Default: by the suffix .onnx, .xml, .tflite, .pt2 or .stablehlo; else a "
            "SavedModel."
        ),
    ] = None,
    preprocessing: Annotated[
        bool, typer.Option("--preprocessing", help="Take pixels, and resize and normalize inside.")
    ] = False,
    pixels: Annotated[
        str | None,
        typer.Option(help="Size of the pixels for --preprocessing.", metavar="HEIGHTxWIDTH"),
    ] = None,
    serving: Annotated[
        int | None,
        typer.Option(
            help="A SavedModel for a server, which takes JPEG, PNG or GIF files and returns the "
            "names and probabilities of this many classes.",
            metavar="CLASSES",
            min=1,
        ),
    ] = None,
    logits: Annotated[bool, typer.Option("--logits", help="Return logits.")] = False,
    precision: Annotated[
        PRECISIONS | None,
        typer.Option(help="Precision of the stored weights. Default: the model's own."),
    ] = None,
    compute_dtype: Annotated[
        Literal["float16", "bfloat16"] | None,
        typer.Option(help="Products in half precision, for GPUs: ONNX and .pt2 files."),
    ] = None,
    channels_first: Annotated[
        bool,
        typer.Option("--channels-first", help="Take images (batch, channels, height, width)."),
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="For --precision int8-static: a folder of images like those that the model will "
            "see, or an .npz with x_train.",
            metavar="SOURCE",
        ),
    ] = None,
    image_size: Annotated[
        list[str] | None,
        typer.Option(
            help="Another image size of a SavedModel, with its own signature. Repeatable.",
            metavar="HEIGHTxWIDTH",
        ),
    ] = None,
    fuse: Annotated[bool, typer.Option(help="Fold scales into weights first.")] = True,
    verify: Annotated[
        bool,
        typer.Option(help="Run the result in its own runtime and compare its outputs."),
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest accepted difference, relative to the largest output.", min=0),
    ] = None,
    overwrite: Overwrite = False,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module that registers custom layers of the model. Repeatable.",
        ),
    ] = None,
    backend: Backend = None,
) -> None:
    """Write a model for TensorFlow, ONNX, OpenVINO, LiteRT, PyTorch or StableHLO."""
    from keras_vitx.export.formats import format_named, format_of, require
    from keras_vitx.export.write import check_destination

    kind = format_named(format) if format else format_of(output)
    require(kind)
    check_destination(output, kind, overwrite)
    sizes = [_size(text, "--image-size") for text in image_size or ()]
    if pixels and not preprocessing:
        raise ValueError("`--pixels` needs `--preprocessing`.")
    if is_size(model) and weights is None:
        raise ValueError(
            f"{model} is a size, which has no weights. Give `--weights`, or `--weights none` to "
            "export random weights."
        )
    if imports:
        # Installed scripts do not look for modules in the current folder.
        sys.path.append(os.getcwd())
    for module in imports or ():
        importlib.import_module(module)
    network = open_model(model, weights)
    exported = kv.export(
        network,
        output,
        kind.name,
        preprocessing=_size(pixels, "--pixels") if pixels else preprocessing,
        outputs="logits" if logits else None,
        serving=serving or False,
        precision=precision,
        compute_dtype=compute_dtype,
        data_format="channels_first" if channels_first else "channels_last",
        calibration=calibration,
        image_sizes=sizes,
        fuse=fuse,
        verify=verify,
        tolerance=tolerance,
        overwrite=overwrite,
        imports=imports or (),
    )
    shape = exported.inputs.get("images", {}).get("shape")
    sides = ", ".join("any" if side is None else str(side) for side in shape or ())
    say(f"{kind.name}: {exported.path}, {exported.size / 1e6:.1f} MB")
    say(f"images ({sides}) -> {', '.join(exported.outputs)}")
    if serving:
        say("image_bytes (any) -> classes, probabilities")
    if exported.difference is not None:
        say(f"Its outputs are within {exported.difference:.1e} of the model's.")
    if exported.latency_ms is not None:
        say(f"One image takes {exported.latency_ms:.1f} ms in its own runtime.")


def _size(text: str, option: str) -> tuple[int, int]:
    """Return a height and a width, written as HEIGHTxWIDTH."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"`{option}` should be HEIGHTxWIDTH, such as 256x192, not {text!r}.")
    return int(sides[0]), int(sides[1])
