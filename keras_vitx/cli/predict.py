"""`keras-vitx predict`: the most probable classes of images."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

import keras_vitx as kv
from keras_vitx.cli import _predictions
from keras_vitx.cli._images import Images, files_of
from keras_vitx.cli._models import is_size, only_sensible_weights, open_model
from keras_vitx.cli._options import Backend, Csv, Json, ModelOrFile, Overwrite, Weights
from keras_vitx.cli._output import check_form, check_new, progress, say, text_file

log = logging.getLogger(__name__)


def main(
    model: ModelOrFile,
    images: Images,
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
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Open a SavedModel, .pt2 or .stablehlo file, which can run code."
        ),
    ] = False,
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
    from keras_vitx.export.predictor import is_exported

    form = _form(output, format, json, csv)
    if output is not None:
        check_new(output, overwrite)
    paths = files_of(images)
    kv.keep_memory()
    if weights is None and is_size(model):
        weights = only_sensible_weights(model)
    is_file = weights is None and is_exported(model)
    network = model if is_file else open_model(model, weights)
    classifier = kv.predictor(network, batch_sizes=(batch_size,), trust=trust)
    predicted = _predicted(classifier, paths, batch_size, top)

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
                    say(f"Error: {error}", error=True)
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
        say(f"Wrote {output}.")
    if skipped:
        say(f"Skipped {len(skipped):,} of {len(paths):,} images.", error=True)
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


def _predicted(
    classifier: "kv.export.Predictor", paths: Sequence[Path], batch_size: int, top: int
) -> Iterator[tuple[list[_predictions.Prediction], dict[Path, OSError]]]:
    """Yield the predictions of each batch, in the order of the files, and its errors."""
    for batch in classifier.batches(paths, batch_size):
        best = []
        if batch.paths:
            probabilities = classifier.probabilities(batch.images)
            best = kv.data.decode_predictions(probabilities, top, classifier)
        yield list(zip(batch.paths, best, strict=True)), batch.errors
