"""`keras-vitx predict`: the most probable classes of images."""

from pathlib import Path
from typing import Any

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
    check_form,
    check_new,
    progress,
    say,
    show,
    show_json,
    text_file,
    write_row,
)


def main(
    model: ModelOrFile,
    images: Images,
    weights: Weights = None,
    top: int = Option(5, help="Number of classes per image.", min=1),
    batch_size: int = Option(32, help="Images per batch.", min=1),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="File to write, one line per image: .csv, or .jsonl (JSON lines).",
    ),
    overwrite: Overwrite = False,
    trust: bool = Option(
        False, "--trust", help="Open a SavedModel, .pt2 or .stablehlo file, which can run code."
    ),
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
    is_file = weights is None and is_exported(model)
    network = model if is_file else open_model(model, weights, trained=True)
    classifier = kv.predictor(network, batch_sizes=(batch_size,), trust=trust)

    all_results: list[dict[str, Any]] = []
    errors: dict[Path, OSError] = {}
    with (
        text_file(output) as file,
        # In a terminal, the rows show the progress.
        progress(len(files), "images", hidden=csv and file.isatty()) as advance,
    ):
        if csv:
            ranks = range(1, min(top, len(classifier.class_names)) + 1)
            names = [f"{name}_{rank}" for rank in ranks for name in ("class", "probability")]
            write_row(["file", *names], file)
        for batch in kv.data.batches_of_files(files, classifier.input, batch_size):
            for error in batch.errors.values():
                if strict:
                    raise error
                say(f"Error: {error}", error=True)
            errors |= batch.errors
            best = []
            if batch.paths:
                probabilities = classifier.probabilities(batch.images)
                best = kv.data.decode_predictions(probabilities, top, classifier)
            for result in map(_result, batch.paths, best):
                if csv:
                    cells = (cell for one in result["classes"] for cell in one.values())
                    write_row([result["file"], *cells], file)
                elif output is not None:
                    show_json(result, file, indent=None)
                else:
                    all_results.append(result)
            advance(len(batch.paths) + len(batch.errors))
    if output is not None:
        say(f"Wrote {output}.")
    elif json:
        skipped = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
        show_json([*all_results, *skipped])
    elif all_results:
        rows = [{"file": one["file"], **each} for one in all_results for each in one["classes"]]
        show(rows, group_by="file", formats={"probability": "{:.1%}".format})
    if errors:
        say(f"Skipped {len(errors):,} of {len(files):,} images.", error=True)
        raise typer.Exit(1)


def _result(path: Path, best: list[tuple]) -> dict[str, Any]:
    """Return a file and its classes, with six digits as in float32."""
    classes = [{"class": name, "probability": float(f"{p:.6g}")} for _, name, p in best]
    return {"file": str(path), "classes": classes}
