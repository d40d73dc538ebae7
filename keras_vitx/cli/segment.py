"""`keras-vitx segment`: the class of each pixel of images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import keras_vitx as kv
from keras_vitx.cli._images import Images, files_of
from keras_vitx.cli._models import is_size, open_model
from keras_vitx.cli._options import Backend, Json, Overwrite, Strict
from keras_vitx.cli._output import check_new, progress, say, show, show_json
from keras_vitx.files import written_whole


def main(
    model: Annotated[
        str,
        typer.Argument(
            help="A segmentation model, such as last.keras in the folder of a run.",
            metavar="MODEL",
        ),
    ],
    images: Images,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The folder for the masks, NAME.png of each image."),
    ],
    mode: Annotated[
        Literal["whole", "slide"],
        typer.Option(help="The image as a whole, or windows that slide over it."),
    ] = "whole",
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Also draw each mask over its image, NAME-overlay.png."),
    ] = False,
    overwrite: Overwrite = False,
    strict: Strict = False,
    json: Json = False,
    backend: Backend = None,
) -> None:
    """Write the class of each pixel of images, and print the share of each class.

    A mask is a picture with a palette, whose indices are the classes. An image that can't be
    decoded is reported and skipped, and the exit code is 1.
    """
    from PIL import Image

    paths = files_of(images)
    masks = _outputs(paths, output, ".png", overwrite)
    overlays = _outputs(paths, output, "-overlay.png", overwrite) if overlay else []
    if is_size(model):
        raise ValueError(f"{model} is a size, which gives one class per image. Expected a file.")
    network = open_model(model)
    kv.keep_memory()
    rows, skipped = [], {}
    with progress(len(paths), "images") as advance:
        for index, path in enumerate(paths):
            try:
                image = kv.data.decode_image(path, network.input_shape[-1])
            except OSError as error:
                if strict:
                    raise
                say(f"Error: {error}", error=True)
                skipped[path] = str(error)
            else:
                found = kv.segmentation.predict(network, image, mode).argmax(-1)
                kv.segmentation.save_mask(found, masks[index])
                if overlay:
                    with written_whole(overlays[index]) as unfinished:
                        drawn = kv.segmentation.overlay(image, found)
                        Image.fromarray(drawn).save(unfinished)
                rows += _shares(path, found, getattr(network, "class_names", None))
            advance(1)
    if json:
        errors = [{"file": str(path), "error": error} for path, error in skipped.items()]
        show_json([*rows, *errors])
    elif rows:
        show(rows, grouped="file", formats={"share": "{:.1%}".format})
    if skipped:
        say(f"Skipped {len(skipped):,} of {len(paths):,} images.", error=True)
        raise typer.Exit(1)


def _outputs(paths: Sequence[Path], folder: Path, suffix: str, overwrite: bool) -> list[Path]:
    """Return the files to write, checked before long work.

    Raises:
        ValueError: if two images have the same name, or a file exists.
        OSError: if a file can't be written.
    """
    twice = [name for name, count in Counter(path.stem for path in paths).items() if count > 1]
    if twice:
        raise ValueError(
            f"The masks are named as their images, but {len(twice)} names are those "
            f"of several images, such as {twice[0]!r}."
        )
    found = [folder / f"{path.stem}{suffix}" for path in paths]
    for path in found:
        check_new(path, overwrite)
    return found


def _shares(path: Path, mask: np.ndarray, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the share of each class that occurs, in descending order."""
    classes, counts = np.unique(mask, return_counts=True)
    shares = sorted(zip(counts / mask.size, classes.tolist(), strict=True), reverse=True)
    return [
        {"file": str(path), "class": names[k] if names else str(k), "share": float(share)}
        for share, k in shares
    ]
