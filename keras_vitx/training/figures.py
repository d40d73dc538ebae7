"""Figures of training and evaluation; an ImportError without matplotlib."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_vitx.files import atomic_write
from keras_vitx.text import needs_extra

# Columns of a history that are not plotted.
NOT_PLOTTED = ("epoch", "seconds", "images_per_second")


def draw_curves(rows: Sequence[Mapping[str, float]], path: str | os.PathLike) -> Path:
    """Plot the columns of a `history.csv` by epoch, each with its `val_` column."""
    columns = dict.fromkeys(key for row in rows for key in row)
    names = list(dict.fromkeys(c.removeprefix("val_") for c in columns if c not in NOT_PLOTTED))
    names.sort(key=lambda name: name == "learning_rate")
    figure = _figure(4 * max(1, len(names)), 3)
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
    return _save(figure, path)


def draw_images(
    images: np.ndarray, titles: Sequence[str], path: str | os.PathLike, columns: int = 4
) -> Path:
    """Draw images (n, height, width, channels), in 0..1, in a grid, each with a title."""
    rows = max(-(-len(images) // columns), 1)
    figure = _figure(2.2 * columns, 2.6 * rows)
    for axis in figure.subplots(rows, columns, squeeze=False).flat:
        axis.axis("off")
    for axis, image, title in zip(figure.axes, images, titles, strict=False):
        axis.imshow(image.clip(0, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
        axis.set_title(title, fontsize="small")
    return _save(figure, path)


def _figure(width, height):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error
    return Figure((width, height), layout="constrained")


def _save(figure, path):
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
    return Path(path)
