"""`keras-vitx predict`: the most probable classes of images."""

import csv as csv_format
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import keras_vitx as kv
from keras_vitx.cli._options import (
    Backend,
    Csv,
    Images,
    Json,
    ModelOrFile,
    Overwrite,
    Strict,
    Weights,
    image_files_of,
    open_model,
)
from keras_vitx.cli._output import (
    as_json,
    check_form,
    check_new,
    progress,
    say,
    show,
    show_json,
    text_file,
)
from keras_vitx.text import csv_cell

Prediction = tuple[Path, list[tuple]]
"""A file, and its (WordNet id, class name, probability) in descending order."""


def main(
    model: ModelOrFile,
    images: Images,
    weights: Weights = None,
    top: Annotated[int, Option(help="Number of classes per image.", min=1)] = 5,
    batch_size: Annotated[int, Option(help="Images per batch.", min=1)] = 32,
    output: Annotated[
        Path | None,
        Option(
            "--output", "-o", help="File to write, a line per image: .csv, or .jsonl (JSON lines)."
        ),
    ] = None,
    overwrite: Overwrite = False,
    trust: Annotated[
        bool,
        Option("--trust", help="Open a SavedModel, .pt2 or .stablehlo file, which can run code."),
    ] = False,
    strict: Strict = False,
    json: Json = False,
    csv: Csv = False,
    backend: Backend = None,
) -> None:
    """Print, or write to a file, the classes of images.

    An image that can't be decoded is reported and skipped, and the exit code is 1.
    """
    from keras_vitx.export.predictor import is_exported

    check_form(json, csv)
    if output is not None:
        if json or csv:
            raise ValueError("`--json` and `--csv` print; the format of `--output` is its suffix.")
        if output.suffix.lower() not in (".csv", ".jsonl"):
            raise ValueError(f"`--output` must end in .csv or .jsonl. Received: {output}.")
        csv = output.suffix.lower() == ".csv"
        check_new(output, overwrite)
    files = image_files_of(images)
    kv.keep_memory()
    is_file = weights is None and is_exported(model)
    network = model if is_file else open_model(model, weights, trained=True)
    classifier = kv.predictor(network, batch_sizes=(batch_size,), trust=trust)

    shown: list[Prediction] = []
    errors: dict[Path, OSError] = {}
    with (
        text_file(output) as file,
        # The rows in a terminal show the progress, too.
        progress(len(files), "images", hidden=csv and file.isatty()) as advance,
    ):
        if csv:
            table = csv_format.writer(file, lineterminator="\n")
            ranks = range(1, min(top, len(classifier.class_names)) + 1)
            table.writerow(
                ["file", *(f"{name}_{rank}" for rank in ranks for name in ("class", "probability"))]
            )
        for batch in classifier.batches(files, batch_size):
            for error in batch.errors.values():
                if strict:
                    raise error
                say(f"Error: {error}", error=True)
            errors |= batch.errors
            best = []
            if batch.paths:
                probabilities = classifier.probabilities(batch.images)
                best = kv.data.decode_predictions(probabilities, top, classifier)
            predictions = list(zip(batch.paths, best, strict=True))
            if csv:
                table.writerows(map(_csv_row, predictions))
            elif output is not None:
                file.writelines(as_json(_as_object(one)) + "\n" for one in predictions)
            else:
                shown += predictions
            advance(len(batch.paths) + len(batch.errors))
    if output is not None:
        say(f"Wrote {output}.")
    elif json:
        skipped = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
        show_json([*map(_as_object, shown), *skipped])
    elif shown:
        rows = [
            {"file": str(path), "class": name, "probability": probability}
            for path, best in shown
            for _, name, probability in best
        ]
        show(rows, grouped="file", formats={"probability": "{:.1%}".format})
    if errors:
        say(f"Skipped {len(errors):,} of {len(files):,} images.", error=True)
        raise typer.Exit(1)


def _csv_row(prediction: Prediction) -> list[Any]:
    path, best = prediction
    pairs = ((csv_cell(name), _rounded(probability)) for _, name, probability in best)
    return [csv_cell(str(path)), *(cell for pair in pairs for cell in pair)]


def _as_object(prediction: Prediction) -> dict[str, Any]:
    path, best = prediction
    classes = [
        {"class": name, "probability": _rounded(probability)} for _, name, probability in best
    ]
    return {"file": str(path), "classes": classes}


def _rounded(probability: float) -> float:
    """Return the six digits that float32 has."""
    return float(f"{probability:.6g}")
