"""Scores by scikit-learn, and a picture of the images that are predicted worst."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import needs_extra
from keras_vitx.training.figures import draw_images
from keras_vitx.training.task import Task

SHOWN = 16


class Predictions(NamedTuple):
    """The predictions of a classifier.

    Attributes:
        labels: Integers (n,), or 0 and 1 (n, classes) for several labels per image.
        probabilities: (n, classes), at least two.
        images: The images as the model takes them, or None.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    images: np.ndarray | None = None


def predictions_of(
    model: keras.Model, batches: Iterable, task: Task
) -> tuple[Predictions, Predictions]:
    """Return the predictions for all images, and those for the worst ones with the images.

    Args:
        model: A model that returns the outputs of `task`.
        batches: Batches (images, labels) or (images, labels, weights); weights of 0 are padding.
        task: The task.

    Raises:
        ValueError: if the task has no classes.
    """
    if task.kind == "regression":
        raise ValueError("`scores` and `wrong` need classes. The task is regression.")
    found, worst = [], None
    for images, labels, *weights in _each(batches):
        outputs = task.outputs.probabilities(
            keras.ops.convert_to_tensor(model.predict_on_batch(images))
        )
        values = keras.ops.convert_to_numpy(outputs)
        if values.shape[1] == 1:
            values = np.concatenate([1 - values, values], axis=1)
        labels = keras.ops.convert_to_numpy(labels)
        if task.kind == "distributions":
            labels = labels.argmax(-1)
        if task.kind != "multi-label":
            labels = labels.reshape(-1).astype("int64")
        real = keras.ops.convert_to_numpy(weights[0]) > 0 if weights else slice(None)
        batch = [each[real] for each in (labels, values, keras.ops.convert_to_numpy(images))]
        found.append(batch[:2])
        batch = (
            batch if worst is None else [np.concatenate(p) for p in zip(worst, batch, strict=True)]
        )
        order = np.argsort(_of_the_label(*batch[:2]), kind="stable")[:SHOWN]
        worst = [each[order] for each in batch]
    every = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    return Predictions(*every), Predictions(*worst)


def scores_of(predictions: Predictions) -> dict[str, float]:
    """Return `"precision"`, `"recall"`, `"f1"` and `"auc"`, each a mean over the classes.

    Classes that no image has, or all have, have no area under the curve and are left out.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import precision_recall_fscore_support, roc_auc_score
    except ImportError as error:
        raise ImportError(needs_extra("Scores need scikit-learn", "metrics")) from error
    labels, probabilities = predictions[:2]
    several = labels.ndim == 2
    predicted = probabilities > 0.5 if several else probabilities.argmax(-1)
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels > 0.5 if several else labels, predicted, average="macro", zero_division=0
    )
    right = labels > 0.5 if several else labels[:, None] == np.arange(probabilities.shape[1])
    areas = [
        roc_auc_score(right[:, c], probabilities[:, c])
        for c in range(right.shape[1])
        if 0 < right[:, c].sum() < len(right)
    ]
    auc = float(np.mean(areas)) if areas else float("nan")
    return {"precision": float(precision), "recall": float(recall), "f1": float(f1), "auc": auc}


def draw_most_wrong(
    worst: Predictions,
    class_names: Sequence[str],
    preprocessing: Preprocessing,
    path: str | os.PathLike,
) -> Path:
    """Draw images, with the probabilities of their label and of the predicted class above.

    Args:
        worst: The images and their predictions.
        class_names: Names of the classes, in the order of the probabilities.
        preprocessing: That of the images.
        path: Path of the picture.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    labels, probabilities, images = worst
    titles = []
    for label, row in zip(labels, probabilities, strict=True):
        if labels.ndim == 2:
            name = int(np.abs(label - row).argmax())
            titles.append(f"{class_names[name]}: {row[name]:.0%}")
            continue
        best = int(row.argmax())
        titles.append(
            f"{class_names[label]}: {row[label]:.0%}\n{class_names[best]}: {row[best]:.0%}"
        )
    pixels = images * np.float32(preprocessing.std) + np.float32(preprocessing.mean)
    return draw_images(pixels, titles, path)


def _of_the_label(labels, probabilities):
    """Return the probability of the label; of several, that of the least probable one."""
    if labels.ndim == 2:
        return np.where(labels > 0.5, probabilities, 1 - probabilities).min(-1)
    return probabilities[np.arange(len(labels)), labels]


def _each(batches):
    if isinstance(batches, keras.utils.PyDataset):
        return (batches[index] for index in range(len(batches)))
    return iter(batches)
