"""A picture of the curves of a training."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_vitx.files import written_whole
from keras_vitx.text import needs_extra

# Measurements of time, which are not drawn.
TIMES = ("epoch", "seconds", "images_per_second")


def draw_curves(rows: Sequence[Mapping[str, float]], path: str | os.PathLike) -> Path:
    """Draw the columns of a history by epoch, each with its `val_` column.

    Args:
        rows: The rows of `history.csv`: `epoch`, `loss`, the metrics, `val_...`, and
            `learning_rate`.
        path: Path of the picture; the suffix selects the format (`.png`, `.pdf`).

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error

    columns = dict.fromkeys(key for row in rows for key in row)
    names = list(dict.fromkeys(c.removeprefix("val_") for c in columns if c not in TIMES))
    names.sort(key=lambda name: name == "learning_rate")
    figure = Figure((4 * max(1, len(names)), 3), layout="constrained")
    axes = figure.subplots(1, max(1, len(names)), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=False):
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            points = [(row["epoch"], row[column]) for row in rows if column in row]
            if points:
                axis.plot(*zip(*points, strict=True), ".-", label=label)
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        if f"val_{name}" in columns:
            axis.legend()
    path = Path(path)
    with written_whole(path) as unfinished:
        figure.savefig(unfinished)
    return path
