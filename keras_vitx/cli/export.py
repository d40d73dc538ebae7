"""`keras-vitx export`: a file that runs without this package."""

import importlib
import os
import sys
from pathlib import Path
from typing import Literal

from typer import Argument, Option

from keras_vitx.cli._options import Backend, ModelOrFile, Overwrite, Weights, is_size, open_model
from keras_vitx.cli._output import say


def main(
    model: ModelOrFile,
    output: Path = Argument(..., help="File or directory to write.", metavar="PATH"),
    weights: Weights = None,
    format: Literal["saved_model", "onnx", "openvino", "litert", "torch", "stablehlo"]
    | None = Option(
        None,
        metavar="FORMAT",
        help="saved_model, onnx, openvino, litert, torch or stablehlo. Default: by the suffix "
        ".onnx, .xml, .tflite, .pt2 or .stablehlo; else saved_model.",
    ),
    preprocessing: bool = Option(
        False, "--preprocessing", help="Take pixels, and resize and normalize inside."
    ),
    pixels: str | None = Option(
        None, help="Size of the pixels for --preprocessing.", metavar="HEIGHTxWIDTH"
    ),
    serving: int | None = Option(
        None,
        help="A SavedModel for a server, from JPEG, PNG or GIF files to the names and "
        "probabilities of this many classes.",
        metavar="CLASSES",
        min=1,
    ),
    logits: bool = Option(False, "--logits", help="Return logits."),
    precision: Literal["float16", "bfloat16"] | None = Option(
        None,
        metavar="DTYPE",
        help="Stored weights: float16 or bfloat16. Default: the model's.",
    ),
    compute_dtype: Literal["float16", "bfloat16"] | None = Option(
        None, metavar="DTYPE", help="Products in float16 or bfloat16, for GPUs: ONNX, .pt2."
    ),
    channels_first: bool = Option(
        False, "--channels-first", help="Take images (batch, channels, height, width)."
    ),
    image_size: list[str] | None = Option(
        None, help="Another size of a SavedModel. Repeatable.", metavar="HEIGHTxWIDTH"
    ),
    opset: int | None = Option(
        None, help="Version of ONNX's operations, from 17 to 23. Default: 20.", metavar="NUMBER"
    ),
    fuse: bool = Option(True, help="Fold the norms of attention maps into weights first."),
    verify: bool = Option(True, help="Run the result in its own runtime and compare its outputs."),
    tolerance: float | None = Option(
        None, help="Largest accepted difference, relative to the largest output.", min=0
    ),
    overwrite: Overwrite = False,
    imports: list[str] | None = Option(
        None, "--import", metavar="MODULE", help="Module that registers custom layers. Repeatable."
    ),
    backend: Backend = None,
) -> None:
    """Write a file that runs without this package."""
    from keras_vitx.api import export
    from keras_vitx.export.formats import format_to_write
    from keras_vitx.export.record import check_destination

    kind = format_to_write(output, format)
    check_destination(output, kind, overwrite)
    if pixels and not preprocessing:
        raise ValueError("`--pixels` needs `--preprocessing`.")
    options = {
        "preprocessing": _size(pixels, "--pixels") if pixels else preprocessing,
        "image_sizes": [_size(text, "--image-size") for text in image_size or ()],
        "outputs": "logits" if logits else None,
        "serving": serving or False,
        "precision": precision,
        "compute_dtype": compute_dtype,
        "data_format": "channels_first" if channels_first else "channels_last",
        "opset": opset,
        "fuse": fuse,
        "verify": verify,
        "tolerance": tolerance,
        "overwrite": overwrite,
        "imports": imports or (),
    }
    if is_size(model) and weights is None:
        raise ValueError(
            f"{model} is a size, which has no weights. Pass `--weights`, or `--weights none` to "
            "export random weights."
        )
    if imports:
        # Installed scripts don't import from the current directory.
        sys.path.append(os.getcwd())
    for module in imports or ():
        importlib.import_module(module)
    exported = export(open_model(model, weights), output, kind.name, **options)
    images = exported.inputs.get("images", {})
    sides = ", ".join("any" if side is None else str(side) for side in images.get("shape", ()))
    say(f"{kind.name}: {exported.path}, {exported.size / 1e6:.1f} MB")
    say(f"images ({sides}) {images.get('dtype', '')} -> {', '.join(exported.outputs)}")
    if normalization := images.get("preprocessing"):
        mean, std = normalization["mean"], normalization["std"]
        say(f"images = (pixels / 255 - mean) / std, with mean = {mean} and std = {std}")
    if serving:
        say("image_bytes (any) -> classes, probabilities")
    if exported.difference is not None:
        say(f"Its outputs are within {exported.difference:.1e} of the model's.")
    if exported.latency_ms is not None:
        say(f"One image takes {exported.latency_ms:.1f} ms in its own runtime.")


def _size(text: str, option: str) -> tuple[int, int]:
    """Return the height and the width in a text HEIGHTxWIDTH."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"`{option}` must be HEIGHTxWIDTH, such as 256x192. Received: {text!r}.")
    return int(sides[0]), int(sides[1])
