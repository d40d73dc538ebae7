"""Figures of measures: curves by block or against a setting, and heat maps.

The arguments `results` are results of `measure` by label: `{"CaiT": results, ...}`.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.analysis.drawing import Picture, drawing
from keras_vitx.files import local_path

Results = Mapping[str, Mapping[str, np.ndarray]]
Points = Mapping[float, float] | Sequence[Mapping[str, Any]]


def mark(axis: Any, row: int, column: int, height: float = 1, width: float = 1) -> None:
    """Draw a red box around a patch of an image; `height` and `width` are those of a patch."""
    from matplotlib.patches import Rectangle

    corner = column * width - 0.5, row * height - 0.5
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="red"))


def shade(index: int, count: int) -> Any:
    """Return the color of one of `count` curves, from dark (the first) to light."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * index / max(count - 1, 1))


def plot_by_block(
    results: Mapping[str, Results | Sequence[Results]],
    names: str | Sequence[str],
    path: str | os.PathLike,
    label: str = "",
) -> Picture:
    """Plot measures by block: one panel per measure, one curve per model.

    Measures with heads are averaged over them; entropy is drawn with that of uniform attention,
    log T, dotted. For example `"entropy"` (Context Broadcasting, Figures 3a and 5a),
    `"relative_distance"` (Figure 5b), `"head_similarity"` (DeepViT, Figure 3c),
    `["feature_similarity", "adjacent_similarity"]` (Figures 4 and 8), `"normalized_cka"`
    (Refiner, Figures 2 and 4) or `["attention_branch", "mlp_branch"]` (CaiT, Figure 4).

    Args:
        results: Results of `measure`, by label. A sequence of results is one model after several
            epochs, in darker shades for later ones; `results_by_epoch` converts the rows of a
            `MeasureDuringTraining` to it.
        names: Name of the measure, or several names.
        path: Path of the file.
        label: Label of the axis of a single measure; by default its name.
    """
    names = [names] if isinstance(names, str) else list(names)
    with drawing(path, (1, len(names))) as (axes,):
        for axis, name in zip(axes, names, strict=True):
            for index, (model, epochs) in enumerate(results.items()):
                epochs = [epochs] if isinstance(epochs, Mapping) else list(epochs)
                color = f"C{index}"
                for number, epoch in enumerate(epochs, 1):
                    opacity = 1 - 0.8 * (1 - number / len(epochs))
                    line = _curve(axis, epoch, name, ".-", color=color, alpha=opacity)
                line.set_label(model)
                if name == "entropy" and "uniform_entropy" in epochs[-1]:
                    line = _curve(axis, epochs[-1], "uniform_entropy", ":", color=color)
                    line.set_label(None if index else "log T")
            ylabel = label if label and len(names) == 1 else name.replace("_", " ")
            axis.set(xlabel="block", ylabel=ylabel)
            axis.locator_params("x", integer=True)
            axis.legend(fontsize=7)
    return Picture(path).expanduser()


def _curve(axis, results, name, style, **arguments):
    """Draw a measure at the positions of its blocks among those of all measures."""
    values = results[name]
    by_length = sorted(results.values(), key=len, reverse=True)
    order = list(dict.fromkeys(block for blocks in by_length for block in blocks))
    positions = [order.index(block) + 1 for block in values]
    means = [np.mean(value) for value in values.values()]
    return axis.plot(positions, means, style, **arguments)[0]


def plot_curves(
    curves: Mapping[str, Points],
    path: str | os.PathLike,
    xlabel: str,
    ylabel: str = "accuracy",
    baseline: str | None = None,
    measure: str = "accuracy",
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
        baseline: Label of the curve to which the others are compared, by their gaps in percent;
            None draws no gaps.
        measure: The key of rows to draw, such as `"mean_iou"`.
    """
    points_by_label: dict[str, dict[float, float]] = {}
    with drawing(path) as ((axis,),):
        for label, curve in curves.items():
            rows = () if isinstance(curve, Mapping) else curve
            points = {row["strength"]: row[measure] for row in rows} if rows else dict(curve)
            points_by_label[label] = points
            (line,) = axis.plot(*zip(*sorted(points.items()), strict=True), ".-", label=label)
            bars = [row.get("interval") or 0 for row in rows]
            if any(bars):
                style = {"fmt": "none", "capsize": 2, "color": line.get_color()}
                axis.errorbar(list(points), list(points.values()), bars, **style)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        axis.locator_params("x", nbins=6)  # Small strengths have long labels.
        axis.legend(fontsize=7)
        if baseline is not None:
            gaps, base = axis.twinx(), points_by_label[baseline]
            for index, (label, points) in enumerate(points_by_label.items()):
                common = sorted(points.keys() & base.keys())
                if label != baseline and common:
                    percent = [100 * (points[x] / base[x] - 1) for x in common]
                    gaps.plot(common, percent, "--", color=f"C{index}", alpha=0.6)
            gaps.set_ylabel(f"gap to {baseline} (%), dashed")
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
    columns = {"cross_layer_similarity": "block", "class_attention": "token"}.get(name, "head")
    limits = {"vmin": 0, "vmax": 1} if name == "cross_layer_similarity" else {}
    with drawing(path, (1, len(results)), (4, 3.2)) as (axes,):
        for axis, (model, measures) in zip(axes, results.items(), strict=True):
            values = measures[name]
            if name == "re_attention":
                *_, (block, matrix) = values.items()
                model = f"{model}, {block}"
                axis.set(xlabel="new head", ylabel="head")
            else:
                matrix = _rows(name, values)
                axis.set_xlabel(columns)
                axis.set_yticks(range(1, len(matrix) + 1), list(values), fontsize=6)
            height, width = matrix.shape
            extent = (0.5, width + 0.5, height + 0.5, 0.5)  # Numbered from 1.
            heat = axis.imshow(matrix, cmap="cividis", aspect="auto", extent=extent, **limits)
            axis.figure.colorbar(heat, ax=axis)
            axis.set_title(model, fontsize=9)
            axis.locator_params("x", integer=True)
    return Picture(path).expanduser()


def _rows(name, values):
    """Return a matrix with a row per block, aligned at the right."""
    rows = [np.mean(row, axis=0) if name == "class_attention" else row for row in values.values()]
    # The last stage of PiT has fewer tokens; class attention may have no class key.
    matrix = np.full((len(rows), max(map(len, rows))), np.nan)
    for target, row in zip(matrix, rows, strict=True):
        target[-len(row) :] = row
    return matrix
