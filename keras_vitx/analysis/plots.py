"""Plots of the analyses."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.analysis.attention import class_attention, saliency
from keras_vitx.files import written_whole
from keras_vitx.text import needs_extra


def plot_class_attention(
    model: keras.Model,
    images: Any,
    path: str | os.PathLike,
    shown: np.ndarray | None = None,
    titles: Sequence[str] = (),
) -> Path:
    """Plot the attention of the class token: one row per image, one column per block.

    Args:
        model: A model with a class token, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        shown: The images to show, values in 0..1 or uint8. None shows `images`, each scaled
            to 0..1.
        titles: One title per image.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `class_attention`.
    """
    images = keras.ops.convert_to_numpy(images)
    maps = class_attention(model, images)
    if shown is None:
        low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
        shown = (images - low) / np.maximum(high - low, np.finfo("float32").tiny)
    size = images.shape[1:3]
    columns = {name: saliency(scores, size) for name, scores in maps.items()}

    figure = _figure((2 * (1 + len(columns)), 2.2 * len(images)))
    axes = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for row, image in enumerate(shown):
        axes[row, 0].imshow(np.squeeze(image), cmap="gray")
        axes[row, 0].set_title(titles[row] if row < len(titles) else "image", fontsize=8)
        for axis, (name, salient) in zip(axes[row, 1:], columns.items(), strict=True):
            axis.imshow(salient[row], cmap="cividis", vmin=0, vmax=1)
            axis.set_title(name, fontsize=8)
    for axis in axes.flat:
        axis.set_axis_off()
    with written_whole(path) as unfinished:
        figure.savefig(unfinished, dpi=100)
    return Path(path)


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

    figure = _figure((max(4, 0.5 * len(names)) if few else 10,) * 2)
    axis = figure.subplots()
    axis.imshow(shares, cmap="cividis", vmin=0, vmax=1)
    axis.set_xlabel("prediction")
    axis.set_ylabel("class")
    if len(names) <= 100:
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8 if few else 4)
        axis.set_yticks(range(len(names)), names, fontsize=8 if few else 4)
    for row, column in np.ndindex(shares.shape) if few else ():
        share = shares[row, column]
        if share >= 0.005:
            colour = "black" if share > 0.5 else "white"
            words = f"{100 * share:.0f}"
            axis.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
    with written_whole(path) as unfinished:
        figure.savefig(unfinished, dpi=150)
    return Path(path)


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error
    return Figure(size, layout="constrained")
