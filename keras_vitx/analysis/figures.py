"""Figures of measures: curves by depth and against a setting, and heat maps.

The only module of this part that imports matplotlib; the others draw with `drawing`.
The arguments `results` are what `measure` returns, by a label: `{"CaiT": results, ...}`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.analysis.measures import relative_gap, similar_blocks
from keras_vitx.files import atomic_write
from keras_vitx.text import nearest, needs_extra

Results = Mapping[str, Mapping[str, np.ndarray]]


@contextmanager
def drawing(
    path: str | os.PathLike,
    shape: tuple[int, int] = (1, 1),
    cell: tuple[float, float] = (4.0, 3.0),
    dpi: int = 100,
) -> Iterator[np.ndarray]:
    """Yield the axes of a figure, `(rows, columns)`, and write it to `path` at the end.

    Args:
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        shape: Rows and columns of axes.
        cell: Width and height of one of them, in inches.
        dpi: Pixels per inch.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error
    rows, columns = shape
    figure = Figure((columns * cell[0], rows * cell[1]), layout="constrained")
    yield figure.subplots(rows, columns, squeeze=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def mark(axis: Any, row: int, column: int, height: float = 1, width: float = 1) -> None:
    """Mark a patch of an image by a red box; `height` and `width` are those of a patch."""
    from matplotlib.patches import Rectangle

    corner = column * width - 0.5, row * height - 0.5
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="red"))


def shade(index: int, count: int) -> Any:
    """Return the colour of one of `count` curves, from dark (the first) to light."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * index / max(count - 1, 1))


def log_scale(low: float, high: float) -> Any:
    """Return a logarithmic scale of colours from `low` to `high`."""
    from matplotlib.colors import LogNorm

    return LogNorm(low, high)


def plot_by_block(
    results: Mapping[str, Results], name: str, path: str | os.PathLike, label: str = ""
) -> Path:
    """Plot one measure by block, one curve per model; the mean over heads where it has heads.

    For example `"relative_distance"` (Context Broadcasting, Figure 5b), `"steepness"`,
    `"nonlocality"`, `"head_similarity"` (DeepViT, Figure 3c), `"feature_similarity"`,
    `"adjacent_similarity"` (DeepViT, Figure 8) and `"normalized_cka"` (Refiner, Figures 2, 4).

    Args:
        results: What `measure` returned, by label.
        name: Name of the measure.
        path: Path of the file.
        label: Label of the axis; by default the name.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if a result lacks the measure.
    """
    with drawing(path) as ((axis,),):
        for model, one in results.items():
            _curve(axis, _of(one, name), ".-", label=model)
        _by_block(axis, label or name.replace("_", " "))
    return Path(path)


def plot_entropy(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    """Plot the entropy by block, beside that of uniform attention, log T.

    Context Broadcasting, Figures 3a and 5a. Arguments, result and errors as in
    `plot_by_block`; the measures are `"entropy"` and `"uniform_entropy"`.
    """
    with drawing(path) as ((axis,),):
        for model, one in results.items():
            (line,) = _curve(axis, _of(one, "entropy"), ".-", label=model)
            label = None if len(axis.lines) > 1 else "log T"
            uniform = {"ls": ":", "color": line.get_color(), "label": label}
            _curve(axis, _of(one, "uniform_entropy"), **uniform)
        _by_block(axis, "entropy (nats)")
    return Path(path)


def plot_layer_similarity(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    """Plot the similarity of features to the last block, and of maps to the block before.

    DeepViT, Figure 4; one column per model. Arguments, result and errors as in
    `plot_by_block`; the measures are `"feature_similarity"` and `"adjacent_similarity"`.
    """
    with drawing(path, (1, len(results))) as (axes,):
        for axis, (model, one) in zip(axes, results.items(), strict=True):
            _curve(axis, _of(one, "feature_similarity"), "k.:", label="features, to the last block")
            maps = _of(one, "adjacent_similarity")
            order = list(one["feature_similarity"])
            shares = [maps.get(block, np.nan) for block in order]
            axis.plot(
                range(1, len(order) + 1), shares, "r.:", label="similar maps, to the block before"
            )
            axis.set_title(model)
            axis.set_ylim(top=1.05)
            _by_block(axis, "similarity")
    return Path(path)


def plot_similarity_matrix(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    """Plot the share of similar attention of all pairs of blocks as heat maps, one per model.

    DeepViT, Figure 3a. Arguments, result and errors as in `plot_by_block`; the measure is
    `"cross_layer_similarity"`.
    """
    with drawing(path, (1, len(results)), (3.6, 3.2)) as (axes,):
        for axis, (model, one) in zip(axes, results.items(), strict=True):
            shares = np.stack(list(_of(one, "cross_layer_similarity").values()))
            _heat(axis, shares, model, "block", "block", vmin=0, vmax=1)
    return Path(path)


def plot_similar_blocks(
    results: Mapping[str, Results],
    path: str | os.PathLike,
    threshold: float = 0.8,
    widths: Mapping[str, int] | None = None,
) -> Path:
    """Plot the similar blocks of models, a point per model.

    Their share against the number of blocks (DeepViT, Figure 3b); with `widths`, their number
    against the embedding dimension (Figure 5). Arguments, result and errors as in
    `plot_by_block`; the measure is `"cross_layer_similarity"`. `threshold` is as in
    `similar_blocks`; `widths` is the embedding dimension of each model, by label.
    """
    with drawing(path) as ((axis,),):
        for model, one in results.items():
            shares = np.stack(list(_of(one, "cross_layer_similarity").values()))
            similar = similar_blocks(shares, threshold)
            if widths is None:
                point = len(shares), similar.mean()
            else:
                point = _of(widths, model), similar.sum()
            axis.plot(*point, "o", label=model, clip_on=False)
        if widths is None:
            axis.set(xlabel="number of blocks", ylabel="share of similar blocks", ylim=(0, 1))
        else:
            axis.set(xlabel="embedding dimension", ylabel="number of similar blocks")
            axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=7)
    return Path(path)


def plot_re_attention_depth(
    similarity: Mapping[str, np.ndarray],
    accuracies: Mapping[int, float],
    path: str | os.PathLike,
) -> Path:
    """Plot accuracy by the number of blocks with re-attention, beside the similarity of maps.

    DeepViT, Figure 9. At block k, accuracy is that of a network with re-attention on all
    blocks after it, the top (blocks - k), and similarity that of the network without any to
    the block before.

    Args:
        similarity: The measure `"adjacent_similarity"` of the network without re-attention.
        accuracies: Accuracy by `re_attention_depth`.
        path: Path of the file.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if a depth is above the number of blocks.
    """
    count = len(similarity) + 1  # The first block has none before it.
    if not accuracies or not all(0 <= depth <= count for depth in accuracies):
        raise ValueError(
            f"`accuracies` must have depths from 0 to {count}, the number of blocks. "
            f"Received: {list(accuracies)}."
        )
    with drawing(path) as ((axis,),):
        axis.plot(range(2, count + 1), list(similarity.values()), "k.:", label="similarity")
        axis.set(xlabel="block", ylabel="similarity to the block before", ylim=(None, 1))
        axis.xaxis.get_major_locator().set_params(integer=True)
        points = sorted((count - depth, accuracy) for depth, accuracy in accuracies.items())
        right = axis.twinx()
        right.plot(*zip(*points, strict=True), "r.:", label="accuracy")
        right.set_ylabel("accuracy, re-attention on the blocks after", color="red")
    return Path(path)


def plot_re_attention(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    r"""Plot $\Theta$ of the last block with `ReAttention` as heat maps, one per model.

    DeepViT, Figure 8c. Arguments, result and errors as in `plot_by_block`; the measure is
    `"re_attention"`.
    """
    with drawing(path, (1, len(results)), (3.6, 3.2)) as (axes,):
        for axis, (model, one) in zip(axes, results.items(), strict=True):
            *_, (block, theta) = _of(one, "re_attention").items()
            _heat(axis, theta, f"{model}, {block}", "head", "new head")
    return Path(path)


def plot_branches(
    results: Mapping[str, Results | Sequence[Results]], path: str | os.PathLike
) -> Path:
    """Plot the norm of both residual branches, relative to the tokens, by block.

    CaiT, Figure 4: attention on top, the MLP below. A sequence of results is one model after
    several epochs, in darker shades for later ones; `results_by_epoch` makes it of the rows
    that a `MeasureDuringTraining` wrote. Arguments, result and errors as in
    `plot_by_block`; the measures are `"attention_branch"` and `"mlp_branch"`.
    """
    with drawing(path, (2, 1), (4.5, 2.4)) as axes:
        for colour, (model, epochs) in enumerate(results.items()):
            epochs = [epochs] if isinstance(epochs, Mapping) else list(epochs)
            for axis, name in zip(axes[:, 0], ("attention_branch", "mlp_branch"), strict=True):
                for index, one in enumerate(epochs):
                    shade = (index + 1) / len(epochs)
                    label = model if index == len(epochs) - 1 else None
                    style = {"color": f"C{colour}", "alpha": 0.2 + 0.8 * shade, "label": label}
                    _curve(axis, _of(one, name), ".-", **style)
                _by_block(axis, f"{name.removesuffix('_branch')} / tokens")
    return Path(path)


def plot_context_scale(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    r"""Plot the mean of $\Lambda$ and the ratio of its quantiles by block.

    Context Broadcasting, Figure 6. Arguments, result and errors as in `plot_by_block`; the
    measure is `"context_scale"`.
    """
    with drawing(path, (1, 2)) as (axes,):
        for model, one in results.items():
            values = _of(one, "context_scale")
            for index, (axis, label) in enumerate(zip(axes, ("mean", "ratio"), strict=True)):
                _curve(axis, {b: v[index] for b, v in values.items()}, ".-", label=model)
                _by_block(axis, f"{label} of Λ")
    return Path(path)


def plot_class_rows(results: Mapping[str, Results], path: str | os.PathLike) -> Path:
    """Plot the attention of the class token: rows are blocks, columns are tokens.

    Context Broadcasting, Figure 10; one picture per model, the mean over heads (and over the
    images that were measured; the paper shows single ones). Arguments, result and errors as
    in `plot_by_block`; the measure is `"class_attention"`.
    """
    with drawing(path, (len(results), 1), (6, 2.2)) as axes:
        for (axis,), (model, one) in zip(axes, results.items(), strict=True):
            rows = [np.mean(row, axis=0) for row in _of(one, "class_attention").values()]
            # The last stage of PiT has fewer tokens; class attention may have no class key.
            wide = np.full((len(rows), max(map(len, rows))), np.nan)
            for target, row in zip(wide, rows, strict=True):
                target[-len(row) :] = row
            _heat(axis, wide, model, "token", "block", aspect="auto")
            axis.set_yticks(range(1, len(rows) + 1), one["class_attention"], fontsize=6)
    return Path(path)


def plot_accuracy(
    accuracies: Mapping[str, Mapping[float, float]],
    path: str | os.PathLike,
    label: str = "fraction of the training images",
    baseline: str | None = None,
) -> Path:
    """Plot accuracy against a setting, and the gap to a baseline in percent.

    ConViT, Figure 2 (fractions of the data); CaiT, Figure 3 (stochastic depth) and Table 10
    (crop ratio).

    Args:
        accuracies: Accuracy by setting, by label of the model.
        path: Path of the file.
        label: What the setting is.
        baseline: Label of the model to which the others are compared; None draws no gap.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if no model has the label `baseline`.
    """
    if baseline is not None and baseline not in accuracies:
        hint = nearest(baseline, accuracies)
        raise ValueError(f"`baseline` must be one of the models. Received: {baseline!r}. {hint}")
    with drawing(path) as ((axis,),):
        for model, points in accuracies.items():
            axis.plot(*zip(*sorted(points.items()), strict=True), ".-", label=model)
        axis.set(xlabel=label, ylabel="accuracy")
        axis.locator_params("x", nbins=6)  # Small strengths have long labels.
        axis.legend(fontsize=7)
        if baseline is not None:
            gaps = axis.twinx()
            for index, (model, points) in enumerate(accuracies.items()):
                common = sorted(points.keys() & accuracies[baseline].keys())
                if model == baseline or not common:
                    continue
                own, other = ([one[at] for at in common] for one in (points, accuracies[baseline]))
                gaps.plot(common, relative_gap(own, other), "--", color=f"C{index}", alpha=0.6)
            gaps.set_ylabel(f"gap to {baseline} (%), dashed")
    return Path(path)


def plot_strength(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | os.PathLike,
    label: str = "strength",
    measure: str = "accuracy",
) -> Path:
    """Plot accuracy against the strength of a perturbation, one curve per model.

    Args:
        curves: What `keras_vitx.robustness.curve` returned, by label of the model. Where
            a row has an interval, it is drawn as a bar.
        path: Path of the file.
        label: What the strength is, with its unit.
        measure: Another measure of the rows, such as `"mean_iou"`.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if a model has no rows.
    """
    if not curves or not all(curves.values()):
        raise ValueError(f"`curves` must have rows for each model. Received: {list(curves)}.")
    with drawing(path) as ((axis,),):
        for model, rows in curves.items():
            rows = sorted(rows, key=lambda row: row["strength"])
            strengths, accuracies = ([row[k] for row in rows] for k in ("strength", measure))
            bars = [row.get("interval") or 0 for row in rows]
            axis.errorbar(strengths, accuracies, bars, fmt=".-", capsize=2, label=model)
        axis.set(xlabel=label, ylabel=measure.replace("_", " "), ylim=(0, 1))
        # Epsilons of an attack are small numbers with many digits.
        axis.locator_params(axis="x", nbins=5)
        axis.legend(fontsize=7)
    return Path(path)


def _of(results, name):
    if name not in results:
        raise ValueError(f"The results have no measure {name!r}. {nearest(name, results)}")
    return results[name]


def _curve(axis, values, *style, **arguments):
    places = range(1, len(values) + 1)
    return axis.plot(places, [np.mean(one) for one in values.values()], *style, **arguments)


def _by_block(axis, label):
    axis.set(xlabel="block", ylabel=label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7)


def _heat(axis, values, title, xlabel, ylabel, **arguments):
    rows, columns = np.shape(values)
    # Numbered from 1.
    extent = (0.5, columns + 0.5, rows + 0.5, 0.5)
    image = axis.imshow(values, cmap="cividis", extent=extent, **arguments)
    for side in (axis.xaxis, axis.yaxis):
        side.get_major_locator().set_params(integer=True)
    axis.figure.colorbar(image, ax=axis)
    axis.set_title(title, fontsize=9)
    axis.set(xlabel=xlabel, ylabel=ylabel)
