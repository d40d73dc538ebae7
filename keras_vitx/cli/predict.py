"""`keras-vitx predict`: the most probable classes of images."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import numpy as np
import typer

import keras_vitx as kv
from keras_vitx.cli import _predictions
from keras_vitx.cli._models import (
    class_names_of,
    is_size,
    only_sensible_weights,
    open_model,
    pixels,
    preprocessing_of,
)
from keras_vitx.cli._options import Backend, Csv, Json, ModelOrFile, Overwrite, Weights
from keras_vitx.cli._output import check_form, check_new, progress, text_file

log = logging.getLogger(__name__)


def main(
    model: ModelOrFile,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Image files, and folders whose images are taken, those of sub-folders too.",
            metavar="IMAGE|FOLDER",
        ),
    ],
    weights: Weights = None,
    top: Annotated[int, typer.Option(help="Number of classes per image.", min=1)] = 5,
    batch_size: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 32,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write, .csv or .jsonl (JSON lines), one line per image.",
        ),
    ] = None,
    format: Annotated[
        Literal["csv", "jsonl"] | None,
        typer.Option(help="Format of the output. Default: by the suffix of `--output`."),
    ] = None,
    overwrite: Overwrite = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at an image that can't be decoded, and write no file."),
    ] = False,
    json: Json = False,
    csv: Csv = False,
    backend: Backend = None,
) -> None:
    """Classify images and print, or write to a file, the most probable classes of each.

    An image that can't be decoded is reported and skipped, and the exit code is 1.
    """
    form = _form(output, format, json, csv)
    if output is not None:
        check_new(output, overwrite)
    paths = _files(images)
    kv.keep_memory()
    if weights is None and is_size(model):
        weights = only_sensible_weights(model)
    predicted = _predicted(open_model(model, weights), paths, batch_size, top)

    skipped: dict[Path, str] = {}
    with (
        text_file(output) as file,
        # The rows in a terminal show the progress, too.
        progress(
            len(paths), "images", hidden=form in _predictions.STREAMED and file.isatty()
        ) as advance,
    ):

        def classified() -> Iterator[_predictions.Prediction]:
            for results, errors in predicted:
                for path, error in errors.items():
                    if strict:
                        raise error
                    skipped[path] = str(error)
                    typer.secho(f"Error: {error}", fg="red", err=True)
                yield from results
                advance(len(results) + len(errors))

        if form in _predictions.STREAMED:
            _predictions.STREAMED[form](classified(), file)
        else:
            results = list(classified())
    if form == "json":
        _predictions.show_as_json(results, skipped)
    elif form == "table":
        _predictions.show_as_table(results)
    if output is not None:
        typer.echo(f"Wrote {output}.")
    if skipped:
        typer.secho(f"Skipped {len(skipped):,} of {len(paths):,} images.", fg="red", err=True)
        raise typer.Exit(1)


def _form(output: Path | None, format: str | None, json: bool, csv: bool) -> str:
    """Return the format of the output: "table", "json", or one of `_predictions.STREAMED`.

    Raises:
        ValueError: if the options contradict each other, or the format of a file is unknown.
    """
    check_form(json, csv)
    if format and (json or csv):
        raise ValueError("`--format` and `--json` or `--csv` are mutually exclusive.")
    if output is None:
        return format or ("json" if json else "csv" if csv else "table")
    if json or csv:
        raise ValueError("`--json` and `--csv` print; the format of `--output` is its suffix.")
    suffix = output.suffix.removeprefix(".").lower()
    if not format and suffix not in _predictions.STREAMED:
        raise ValueError(
            f"`--output` should end in .csv or .jsonl, or have a `--format`; got {output}."
        )
    return format or suffix


def _files(given: Sequence[Path]) -> list[Path]:
    """Return the files, and those of folders in the order of their paths.

    Raises:
        ValueError: if a folder has no images.
    """
    from keras_vitx.data.sources.folders import image_files

    paths = []
    for path in given:
        found = image_files(path) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"The folder {path} has no images.")
        paths += found
    return paths


def _predicted(
    network, paths: Sequence[Path], batch_size: int, top: int
) -> Iterator[tuple[list[_predictions.Prediction], dict[Path, OSError]]]:
    """Yield the predictions of each batch, in the order of the files, and its errors."""
    from keras_vitx.classifier import outputs_of

    outputs = outputs_of(network)
    named = SimpleNamespace(class_names=_names(network, outputs.classes))
    for batch in _batches(network, paths, batch_size):
        best = []
        if batch.paths:
            inputs = _as_input(batch.images, network.inputs[0].dtype)
            probabilities = outputs.probabilities(network.predict_on_batch(inputs))
            best = kv.data.decode_predictions(probabilities, top, named)
        yield list(zip(batch.paths, best, strict=True)), batch.errors


def _names(network, classes: int) -> list[str] | None:
    """Return the class names; None stands for those of ImageNet."""
    names = class_names_of(network)
    if names is None and classes != 1000:
        names = [f"class {index}" for index in range(classes)]
    return names


def _batches(network, paths: Sequence[Path], batch_size: int) -> Iterator:
    """Yield `data.FileBatch`es of images preprocessed for the network.

    Raises:
        ValueError: if the input of the network is not images.
    """
    from keras_vitx.data.preprocessing import normalize
    from keras_vitx.preprocessing import ModelInput

    shape = network.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[-1] not in (1, 3):
        raise ValueError(
            "The model's input must be images (batch, height, width, channels) with 1 or 3 "
            f"channels. Received: a model with input {shape}."
        )
    preprocessing = preprocessing_of(network)
    if preprocessing is None:
        log.warning("The model has no record of its preprocessing; it receives pixels in 0..255.")
        preprocessing = pixels(shape[-1])
    if None not in shape[1:]:
        facts = ModelInput(shape, preprocessing)
        yield from kv.data.batches_of_files(paths, facts, batch_size)
        return
    # The model takes images of any size: each is a batch of its own.
    for path in paths:
        try:
            image = kv.data.decode_image(path, shape[-1])[None].astype("float32")
            yield kv.data.FileBatch([path], normalize(image, preprocessing), {})
        except OSError as error:
            yield kv.data.FileBatch([], np.empty(0), {path: error})


def _as_input(images: np.ndarray, dtype: str) -> np.ndarray:
    return np.rint(images).astype(dtype) if "int" in dtype else images
