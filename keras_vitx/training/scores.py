"""Results of an evaluation beyond its metrics: confusion, scores, and the worst images."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vitx.drawing import drawing
from keras_vitx.outputs import Task
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import needs_extra

NUM_WORST = 16

Predictions = tuple[np.ndarray, np.ndarray]
"""Labels, integers (n,), or 0 and 1 (n, classes), and probabilities of at least two classes."""


def predictions_of(
    model: keras.Model, batches: Iterable, task: Task
) -> tuple[Predictions, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return all predictions, and the labels, probabilities and images (inputs) of the worst."""
    if isinstance(batches, keras.utils.PyDataset):
        batches = map(batches.__getitem__, range(len(batches)))
    predictions, worst = [], None
    for images, labels, *weights in batches:
        outputs = ops.convert_to_tensor(model.predict_on_batch(images))
        values = ops.convert_to_numpy(task.outputs.probabilities(outputs))
        if values.shape[1] == 1:
            values = np.concatenate([1 - values, values], axis=1)
        labels = ops.convert_to_numpy(labels)
        if task.kind == "distributions":
            labels = labels.argmax(-1)
        if task.kind != "multi-label":
            labels = labels.reshape(-1).astype("int64")
        real = ops.convert_to_numpy(weights[0]) > 0 if weights else slice(None)
        batch = [array[real] for array in (labels, values, ops.convert_to_numpy(images))]
        predictions.append(batch[:2])
        if worst is not None:
            batch = [np.concatenate(pair) for pair in zip(worst, batch, strict=True)]
        order = np.argsort(_label_probability(*batch[:2]), kind="stable")[:NUM_WORST]
        worst = tuple(array[order] for array in batch)
    return tuple(np.concatenate(arrays) for arrays in zip(*predictions, strict=True)), worst


def predicted_of(predictions: Predictions, threshold: Any = None) -> np.ndarray:
    """Return the predicted classes: integers (n,), or whether each is predicted, (n, classes).

    `threshold` is that of the second of two classes, or of each of several labels; None is 0.5.
    """
    labels, probabilities = predictions
    if labels.ndim == 2:
        return probabilities > np.asarray(0.5 if threshold is None else threshold, "float32")
    if threshold is not None:
        return (probabilities[:, 1] > np.float32(threshold)).astype("int64")
    return probabilities.argmax(-1)


def rows_of(
    predictions: Predictions, names: Sequence[str], class_names: Sequence[str], threshold: Any
) -> list[dict[str, Any]]:
    """Return a row per image, those whose label has the lowest probability first."""
    labels, probabilities = predictions
    predicted, of_label = predicted_of(predictions, threshold), _label_probability(*predictions)
    if labels.ndim == 2:
        labels = labels > 0.5

    def words(classes):
        indices = np.flatnonzero(classes) if np.ndim(classes) else [classes]
        return "|".join(class_names[index] for index in indices)

    rows = []
    for i in np.argsort(of_label, kind="stable"):
        values = zip(class_names, probabilities[i].astype(float).round(6).tolist(), strict=True)
        rows.append(
            {
                "image": names[i],
                "label": words(labels[i]),
                "prediction": words(predicted[i]),
                "right": int(np.array_equal(predicted[i], labels[i])),
                "label_probability": round(float(of_label[i]), 6),
                **{f"p({name})": value for name, value in values},
            }
        )
    return rows


def best_threshold(
    labels: np.ndarray, probabilities: np.ndarray, metric: Literal["f1", "accuracy"] = "f1"
) -> float:
    """Return the threshold of one class with the best F1 or accuracy, between two probabilities.

    `labels` are 0 and 1, (n,). Of equal thresholds, it is the nearest to 0.5.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, positive = probabilities[order].astype("float64"), labels[order] > 0.5
    # With the first k images predicted, for k = 0, 1, ...
    hits, count = np.append(0, np.cumsum(positive)), np.arange(len(values) + 1)
    total = positive.sum()
    quality = 2 * hits / np.maximum(count + total, 1)
    if metric == "accuracy":
        quality = 2 * hits - count
    edges = np.concatenate([[1.0], values, [0.0]])
    thresholds = (edges[:-1] + edges[1:]) / 2
    quality = np.where(edges[:-1] > edges[1:], quality, -np.inf)  # Equal values go together.
    best = np.flatnonzero(quality >= quality.max() - 1e-12)
    return float(thresholds[best[np.abs(thresholds[best] - 0.5).argmin()]])


def confusion_of(
    predictions: Predictions, class_names: Sequence[str], threshold: Any = None
) -> dict[str, Any]:
    """Return the entries of the result of `evaluate` with `confusion`."""
    labels, probabilities = predictions
    matrix = np.zeros((probabilities.shape[1],) * 2, "int64")
    np.add.at(matrix, (labels, predicted_of(predictions, threshold)), 1)
    rows = []
    for index in np.flatnonzero(matrix.sum(1)):
        images, predicted, hits = matrix[index].sum(), matrix[:, index].sum(), matrix[index, index]
        wrong = np.where(np.arange(len(matrix)) == index, 0, matrix[index])
        rows.append(
            {
                "class": class_names[index],
                "images": int(images),
                "accuracy": float(hits / images),
                "precision": float(hits / predicted) if predicted else None,
                "most_confused_with": class_names[wrong.argmax()] if wrong.any() else None,
            }
        )
    return {
        "class_accuracy": float(np.mean([row["accuracy"] for row in rows])),
        "confusion": matrix,
        "class_names": tuple(class_names),
        "per_class": rows,
    }


def scores_of(predictions: Predictions, threshold: Any = None) -> dict[str, float]:
    """Return `"precision"`, `"recall"`, `"f1"` and `"auc"`, each a mean over the classes.

    Classes of no image, or of all images, have no area under the curve and are left out.
    """
    try:
        from sklearn.metrics import precision_recall_fscore_support, roc_auc_score
    except ImportError as error:
        raise ImportError(needs_extra("Scores need scikit-learn", "metrics")) from error
    labels, probabilities = predictions
    predicted = predicted_of(predictions, threshold)
    targets = labels[:, None] == np.arange(probabilities.shape[1])
    if labels.ndim == 2:
        labels = targets = labels > 0.5
    scores = precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    scores = dict(zip(("precision", "recall", "f1"), map(float, scores[:3]), strict=True))
    areas = [
        roc_auc_score(target, probability)
        for target, probability in zip(targets.T, probabilities.T, strict=True)
        if 0 < target.sum() < len(target)
    ]
    return {**scores, "auc": float(np.mean(areas)) if areas else float("nan")}


def draw_worst(
    worst: tuple[np.ndarray, np.ndarray, np.ndarray],
    class_names: Sequence[str],
    preprocessing: Preprocessing,
    path: str | os.PathLike,
) -> None:
    """Draw images, titled with the probabilities of their label and of the predicted class."""
    labels, probabilities, images = worst
    titles = []
    for label, row in zip(labels, probabilities, strict=True):
        # Of several labels, the one with the largest error.
        classes = [np.abs(label - row).argmax()] if labels.ndim == 2 else [label, row.argmax()]
        titles.append("\n".join(f"{class_names[index]}: {row[index]:.0%}" for index in classes))
    pixels = images * np.float32(preprocessing.std) + np.float32(preprocessing.mean)
    rows = max(-(-len(pixels) // 4), 1)
    with drawing(path, (rows, 4), (2.2, 2.6)) as axes:
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, image, title in zip(axes.flat, pixels, titles, strict=False):
            axis.imshow(image.clip(0, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
            axis.set_title(title, fontsize="small")


def _label_probability(labels, probabilities):
    """Return the probability of the label; of several, that of the least probable one."""
    if labels.ndim == 2:
        return np.where(labels > 0.5, probabilities, 1 - probabilities).min(-1)
    return probabilities[np.arange(len(labels)), labels]
