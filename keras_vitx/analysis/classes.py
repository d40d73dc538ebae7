"""Accuracy by class, and the confusion matrix, of predictions."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vitx.analysis.drawing import WEIGHTS, Picture, drawing
from keras_vitx.data.sources.dataset import Split


def classes_of(results: Mapping[str, Any], split: Split | None = None) -> list[dict[str, Any]]:
    """Return a row per class that has images.

    Args:
        results: Those of `keras_vitx.evaluate` with `predictions=True`, for a label per image.
        split: The images, which name the worst ones if all of them can be read.

    Returns:
        The `class`, its number of `images`, its `accuracy`, the class that it is most often
        `taken for` (None if never), and its `worst` image, whose own class is least probable: its
        path, or its index in the results.
    """
    labels, probabilities = results["labels"], results["probabilities"]
    names, predicted, rows = results["class_names"], probabilities.argmax(-1), []
    for index in np.unique(labels):
        images = np.flatnonzero(labels == index)
        counts = np.bincount(predicted[images], minlength=len(names))
        right, counts[index] = int(counts[index]), 0
        row = {"class": names[index], "images": len(images), "accuracy": right / len(images)}
        row["taken for"] = names[counts.argmax()] if counts.any() else None
        worst = int(images[probabilities[images, index].argmin()])
        row["worst"] = str(split.images.id(worst)) if split and len(split) == len(labels) else worst
        rows.append(row)
    return rows


def plot_confusion(results: Mapping[str, Any], path: str | os.PathLike) -> Picture:
    """Plot which share of the images of a class (rows) is predicted as which class (columns).

    Args:
        results: As in `classes_of`.
        path: Path of the file.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    names, predicted = results["class_names"], results["probabilities"].argmax(-1)
    labels = {"labels": range(len(names)), "display_labels": names, "xticks_rotation": "vertical"}
    style = {"cmap": WEIGHTS, "normalize": "true", "values_format": ".2f"}
    size, has_numbers = 3 + 0.4 * min(len(names), 50), len(names) <= 50
    with drawing(path, cell=(size, size)) as ((axis,),):
        ConfusionMatrixDisplay.from_predictions(
            *(results["labels"], predicted), include_values=has_numbers, ax=axis, **labels, **style
        )
    return Picture(path).expanduser()
