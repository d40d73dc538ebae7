"""A figure of a confusion matrix."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vitx.analysis.figures import drawing


def plot_confusion(matrix: np.ndarray, class_names: Sequence[str], path: str | os.PathLike) -> Path:
    """Plot a confusion matrix: a row per class, in fractions of its images.

    Cells have numbers if there are at most 20 classes. Classes without images and predictions
    are left out.

    Args:
        matrix: Counts (classes, classes): images of the class of a row, by predicted class,
            as `keras_vitx.evaluate` returns them.
        class_names: Names of the classes.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the matrix is not square, or there is not one name per class.
    """
    matrix = np.asarray(matrix)
    if matrix.shape != (len(class_names), len(class_names)):
        raise ValueError(
            f"`matrix` must have the shape (classes, classes), for {len(class_names)} names. "
            f"Received: {matrix.shape}."
        )
    used = np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    matrix, names = matrix[np.ix_(used, used)], [class_names[i] for i in used]
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    few = len(names) <= 20
    side = max(4, 0.5 * len(names)) if few else 10
    with drawing(path, cell=(side, side), dpi=150) as ((axis,),):
        axis.imshow(shares, cmap="cividis", vmin=0, vmax=1)
        axis.set_xlabel("prediction")
        axis.set_ylabel("class")
        if len(names) <= 100:
            axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8 if few else 4)
            axis.set_yticks(range(len(names)), names, fontsize=8 if few else 4)
        for row, column in np.ndindex(shares.shape) if few else ():
            share = shares[row, column]
            if share >= 0.005:
                color = "black" if share > 0.5 else "white"
                words = f"{100 * share:.0f}"
                axis.text(column, row, words, ha="center", va="center", fontsize=7, color=color)
    return Path(path)
