"""Figures of measures: curves by block or against a setting, and heat maps.

The arguments `results` are results of `measure` by label: `{"CaiT": results, ...}`.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vitx.analysis.drawing import SIGNED, WEIGHTS, Picture, block_label, drawing
from keras_vitx.files import local_path

Results = Mapping[str, Mapping[str, np.ndarray]]
Points = Mapping[float, float] | Sequence[Mapping[str, Any]]


def colors(values: ArrayLike, low: float | None = None) -> dict[str, Any]:
    """Return palette and limits of `imshow`: from `low`, or about 0 if some values are negative."""
    smallest, largest = np.nanmin(values), np.nanmax(values)
    if smallest < 0:
        largest = max(-smallest, largest)
        return {"cmap": SIGNED, "vmin": -largest, "vmax": largest}
    return {"cmap": WEIGHTS, "vmin": smallest if low is None else low, "vmax": largest}


def shade(index: int, count: int) -> Any:
    """Return the color of one of `count` curves, from dark (the first) to light."""
    from matplotlib import colormaps

    return colormaps[WEIGHTS](0.9 * index / max(count - 1, 1))


def plot_by_block(
    results: Mapping[str, Results],
    names: str | Sequence[str],
    path: str | os.PathLike,
) -> Picture:
    """Plot measures by block, from 0: one panel per measure, one curve per model.

    Blocks of class attention have a curve of their own, with rings. Measures with heads are
    averaged over them; entropy is drawn with that of uniform attention, log T, dotted. For example
    `"entropy"` (Context Broadcasting, Figures 3a and 5a), `"relative_distance"` (Figure 5b),
    `"head_similarity"` (DeepViT, Figure 3c), `["feature_similarity", "adjacent_similarity"]`
    (Figures 4 and 8), `"normalized_cka"` (Refiner, Figures 2 and 4) or
    `["attention_branch", "mlp_branch"]` (CaiT, Figure 4).

    Args:
        results: Results of `measure`, by label.
        names: Name of the measure, or several names.
        path: Path of the file.
    """
    names = [names] if isinstance(names, str) else list(names)
    with drawing(path, (1, len(names))) as (axes,):
        for axis, name in zip(axes, names, strict=True):
            for index, (model, measures) in enumerate(results.items()):
                color = f"C{index}"
                for kind, points in _points(measures, name).items():
                    style = {"color": color, "mfc": "w" if kind else color, "ms": 4}
                    axis.plot(*points, "o-" if kind else ".-", label=model + kind, **style)
                if name == "entropy" and "uniform_entropy" in measures:
                    points = _points(measures, "uniform_entropy")
                    axis.plot(*points[""], ":", color=color, label=None if index else "log T")
            axis.set(xlabel="block", ylabel=name.replace("_", " "))
            axis.locator_params("x", integer=True)
            axis.legend(fontsize=7, framealpha=0.4)
    return Picture(path).expanduser()


def _points(results, name):
    """Return positions and means of a measure, of blocks (`""`) and of class attention."""
    by_length = sorted(results.values(), key=len, reverse=True)
    order = list(dict.fromkeys(block for blocks in by_length for block in blocks))
    points = {}
    for block, values in results[name].items():
        kind = ", class attention" if block_label(block).startswith("class") else ""
        positions, means = points.setdefault(kind, ([], []))
        positions.append(order.index(block))
        means.append(np.mean(values))
    return points


def plot_curves(
    curves: Mapping[str, Points],
    path: str | os.PathLike,
    xlabel: str,
    ylabel: str = "accuracy",
) -> Picture:
    """Plot numbers, such as accuracies, against a setting: one curve per model.

    ConViT, Figure 2 (fractions of the images); CaiT, Figure 3 (stochastic depth) and Table 10
    (crop ratio); DeepViT, Figures 3b, 5 (similar blocks) and 9; Context Broadcasting, Tables 8
    and 12 (strength of a perturbation).

    Args:
        curves: By label, the numbers by setting; or the rows of `keras_vitx.robustness.curve`,
            whose intervals are drawn as bars.
        path: Path of the file.
        xlabel: Name of the setting, with its unit.
        ylabel: Name of the numbers.
    """
    with drawing(path) as ((axis,),):
        for label, curve in curves.items():
            rows = () if isinstance(curve, Mapping) else curve
            points = {row["strength"]: row["accuracy"] for row in rows} if rows else dict(curve)
            (line,) = axis.plot(*zip(*sorted(points.items()), strict=True), ".-", label=label)
            bars = [row.get("interval") or 0 for row in rows]
            if any(bars):
                style = {"fmt": "none", "capsize": 2, "color": line.get_color()}
                axis.errorbar(list(points), list(points.values()), bars, **style)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        axis.locator_params("x", nbins=6)  # Small strengths have long labels.
        axis.legend(fontsize=7, framealpha=0.4)
    return Picture(path).expanduser()


def plot_history(
    history: keras.callbacks.History | str | os.PathLike, path: str | os.PathLike
) -> Picture:
    """Plot loss and metrics of a training by epoch, each with its validation.

    Args:
        history: What `fit` returned, or the path of a `history.csv` of Keras's `CSVLogger`.
        path: Path of the file.
    """
    if isinstance(history, keras.callbacks.History):
        columns = history.history
    else:
        with local_path(history).open(newline="") as file:
            rows = list(csv.DictReader(file))
        # Keras writes "NA" where there is no validation.
        columns = {n: [float(row[n]) for row in rows if row[n] != "NA"] for n in rows[0]}
        columns.pop("epoch")
    names = [name for name in columns if not name.startswith("val_")]
    with drawing(path, (1, len(names))) as (axes,):
        for axis, name in zip(axes, names, strict=True):
            for column, label in ((name, "training"), (f"val_{name}", "validation")):
                if values := columns.get(column):
                    axis.plot(range(1, 1 + len(values)), values, ".-", label=label)
            axis.set(title=name.replace("_", " "), xlabel="epoch")
            axis.locator_params("x", integer=True)
            axis.legend()
    return Picture(path).expanduser()


def plot_matrix(results: Mapping[str, Results], name: str, path: str | os.PathLike) -> Picture:
    r"""Plot a measure as a heat map per model; rows are blocks.

    `"cross_layer_similarity"`, the fraction of similar attention of all pairs of blocks (DeepViT,
    Figure 3a); `"class_attention"`, the attention of the class token to each token, the mean over
    heads (Context Broadcasting, Figure 10, for single images); a measure with one number per
    head; or `"re_attention"`, $\Theta$ of the last block with `ReAttention` (DeepViT, Figure 8c).

    Args:
        results: Results of `measure`, by label.
        name: Name of the measure.
        path: Path of the file.
    """
    xlabel = {"cross_layer_similarity": "block", "class_attention": "token"}.get(name, "head")
    limits = {"cmap": WEIGHTS, "vmin": 0, "vmax": 1} if name == "cross_layer_similarity" else {}
    with drawing(path, (1, len(results)), (4, 3.2)) as (axes,):
        for axis, (model, measures) in zip(axes, results.items(), strict=True):
            values = measures[name]
            if name == "re_attention":
                *_, (block, matrix) = values.items()
                model = f"{model}, {block_label(block)}"
                axis.set(xlabel="new head", ylabel="head")
            else:
                matrix = _rows(name, values)
                axis.set_xlabel(xlabel)
                axis.set_yticks(range(len(matrix)), map(block_label, values), fontsize=6)
            heat = axis.imshow(matrix, aspect="auto", **(limits or colors(matrix)))
            axis.figure.colorbar(heat, ax=axis)
            axis.set_title(model, fontsize=9)
            axis.locator_params("both" if name == "re_attention" else "x", integer=True)
    return Picture(path).expanduser()


def _rows(name, values):
    """Return a matrix with a row per block, aligned at the right."""
    rows = [np.mean(row, axis=0) if name == "class_attention" else row for row in values.values()]
    # The last stage of PiT has fewer tokens; class attention may have no class key.
    matrix = np.full((len(rows), max(map(len, rows))), np.nan)
    for target, row in zip(matrix, rows, strict=True):
        target[-len(row) :] = row
    return matrix
