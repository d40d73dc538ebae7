"""The output of `keras-vitx predict`."""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from keras_vitx.cli._output import as_json, show, show_json
from keras_vitx.text import csv_cell

Prediction = tuple[Path, list[tuple]]
"""A file, and its (WordNet id, class name, probability) in descending order."""


def write_csv(predictions: Iterable[Prediction], file: TextIO) -> None:
    """Write one row per image: `file,class_1,probability_1,class_2,...`."""
    writer = csv.writer(file, lineterminator="\n")
    header = ["file"]
    for path, best in predictions:
        if len(header) == 1:
            for rank in range(1, len(best) + 1):
                header += [f"class_{rank}", f"probability_{rank}"]
            writer.writerow(header)
        pairs = ((csv_cell(name), _rounded(probability)) for _, name, probability in best)
        writer.writerow([csv_cell(str(path)), *(cell for pair in pairs for cell in pair)])
    if len(header) == 1:
        writer.writerow(header)


def write_json_lines(predictions: Iterable[Prediction], file: TextIO) -> None:
    """Write one JSON object per line and image."""
    for path, best in predictions:
        file.write(as_json(_as_object(path, best)) + "\n")


STREAMED: dict[str, Callable[[Iterable[Prediction], TextIO], None]] = {
    "csv": write_csv,
    "jsonl": write_json_lines,
}
"""Functions that write predictions as they come, by format."""


def show_as_json(predictions: Sequence[Prediction], errors: dict[Path, str]) -> None:
    """Print a JSON array, with an object per image; the errors come last."""
    objects = [_as_object(path, best) for path, best in predictions]
    show_json(objects + [{"file": str(path), "error": error} for path, error in errors.items()])


def show_as_table(predictions: Sequence[Prediction]) -> None:
    """Print a table with one row per class of an image."""
    rows = [
        {"file": str(path), "class": name, "probability": probability}
        for path, best in predictions
        for _, name, probability in best
    ]
    if rows:
        show(rows, grouped="file", formats={"probability": "{:.1%}".format})


def _as_object(path: Path, best: list[tuple]) -> dict[str, Any]:
    classes = [
        {"class": name, "probability": _rounded(probability)} for _, name, probability in best
    ]
    return {"file": str(path), "classes": classes}


def _rounded(probability: float) -> float:
    """Return the six digits that float32 has."""
    return float(f"{probability:.6g}")
