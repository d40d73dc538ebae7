"""Pictures of attention maps, beside their images."""

import os
from collections.abc import Mapping, Sequence
from textwrap import fill
from types import SimpleNamespace
from typing import Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vitx.analysis.attribution import Method, Target, attribute
from keras_vitx.analysis.drawing import Picture, block_label, drawing
from keras_vitx.analysis.figures import colors
from keras_vitx.analysis.measures import entropy
from keras_vitx.analysis.trace import as_array, class_attention, trace
from keras_vitx.checks import check_argument
from keras_vitx.data import decode_predictions
from keras_vitx.data.predictions import class_names
from keras_vitx.outputs import outputs_of

TINY = np.finfo("float32").tiny


def plot_class_attention(
    model: keras.Model,
    images: ArrayLike,
    path: str | os.PathLike,
    shown: np.ndarray | None = None,
    titles: Sequence[str] = (),
    mode: Literal["mean", "heads", "focus"] = "mean",
) -> Picture:
    """Plot the attention of the class token to the patches, beside each image.

    Args:
        model: A model with a class token, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        shown: The images to show, values in 0..1 or uint8. None shows `images`, each scaled
            to 0..1.
        titles: One title per image.
        mode: `"mean"`: one column per block, the mean over heads as `saliency`. `"heads"`: one row
            per block, one column per head (CaiT, Figure 6). `"focus"`: the gray image modulated by
            the saliency of the first block with the class token, and the classes above 10 % (CaiT,
            Section 5.2 and Figure 7).

    Raises:
        ValueError: as in `trace`; if the model has no attention or no class token.
    """
    check_argument("mode", mode, Literal["mean", "heads", "focus"])
    images = ops.convert_to_numpy(images)
    maps = class_attention(model, images)
    salient = {name: saliency(each, images.shape[1:3]) for name, each in maps.items()}
    likely = likely_classes(model, images) if mode == "focus" else ()
    rows = []
    for index, image in enumerate(scaled_to_1(images) if shown is None else shown):
        first = {"image": image, "title": titles[index] if index < len(titles) else "image"}
        if mode == "mean":
            cells = [{"picture": s[index], "title": block_label(b)} for b, s in salient.items()]
            rows.append([first, *cells])
        elif mode == "focus":
            focus = _gray(image) * next(iter(salient.values()))[index]
            classes = [f"{name} ({100 * p:.0f}%)" for name, p in likely[index] if p > 0.1]
            rows.append([first, {"picture": focus, "title": _wrap(classes)}])
        else:
            for name, scores in maps.items():
                heads = enumerate(scores[index])
                cells = [{"picture": s, "title": f"head {head}"} for head, s in heads]
                cells[0]["ylabel"] = block_label(name)
                rows.append([first, *cells])
                first = None  # Only the first row of an image shows it.
    if mode == "heads":
        return _draw(rows, path, (1.5, 1.7), "attention weight")
    bar = "brightness x attention" if mode == "focus" else "attention, scaled to 0..1"
    return _draw(rows, path, (2, 2.2), bar)


def plot_attribution(
    model: keras.Model,
    images: ArrayLike,
    path: str | os.PathLike,
    methods: Sequence[Method] = ("rollout", "gradient_attention", "smooth_gradient"),
    target: Target = None,
    shown: np.ndarray | None = None,
) -> Picture:
    """Plot what a prediction owes to each place, over the gray image: a column per method.

    Args:
        model, images: As in `attribute`.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        methods: Methods of `attribute`, each scaled to its range in the image.
        target: As in `attribute`.
        shown: The images to show, as in `plot_class_attention`.
    """
    images = ops.convert_to_numpy(images)
    shown = scaled_to_1(images) if shown is None else shown
    found = [attribute(model, images, method, target) for method in methods]
    salient = [saliency(each[:, None], shown.shape[1:3]) for each in found]
    rows = []
    for index, (image, likely) in enumerate(zip(shown, likely_classes(model, images), strict=True)):
        row = [{"image": image, "title": "\n".join(f"{name} {p:.0%}" for name, p in likely[:2])}]
        for method, each in zip(methods, salient, strict=True):
            style = {"title": method.replace("_", " "), "alpha": each[index]}
            row.append({"picture": each[index], "over": _gray(image), **style})
        rows.append(row)
    return _draw(rows, path, (2, 2.3), "attribution, scaled to 0..1")


def saliency(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the attention that each pixel receives, `(batch, height, width)`, in 0..1 per image.

    The mean over heads of `(batch, heads, rows, columns)`, bicubically upsampled to `size`, then
    `(x - min) / (max - min)`: CaiT, Section 5.2.
    """
    mean = maps.mean(axis=1)[..., None]
    resized = ops.image.resize(mean, size, interpolation="bicubic", data_format="channels_last")
    return scaled_to_1(as_array(resized)[..., 0])


def scaled_to_1(images: np.ndarray) -> np.ndarray:
    """Return each image of a batch scaled to 0..1."""
    axes = tuple(range(1, images.ndim))
    low, high = images.min(axes, keepdims=True), images.max(axes, keepdims=True)
    return (images - low) / np.maximum(high - low, TINY)


def one_or_three(image: np.ndarray) -> np.ndarray:
    """Return a map as it is, and an image without channels if they are not colors: their mean."""
    return image if image.ndim == 2 or image.shape[-1] in (3, 4) else image.mean(-1)


def likely_classes(model: keras.Model, images: np.ndarray) -> list[list[tuple[str, float]]]:
    """Return names and probabilities of the five likeliest classes; none without a classifier."""
    try:
        outputs = outputs_of(model)
    except ValueError:
        return [[] for _ in images]
    names = class_names(model, outputs.classes)
    probabilities = outputs.probabilities(model.predict_on_batch(images))
    best = decode_predictions(probabilities, 5, SimpleNamespace(class_names=names))
    return [[(name, probability) for _, name, probability in classes] for classes in best]


def _wrap(names):
    """Join names by commas, in lines of at most 28 characters that break at commas only."""
    text = ", ".join(name.replace(" ", "\xa0") for name in names)
    return fill(text, 28, break_on_hyphens=False).replace("\xa0", " ")


def _gray(image):
    """Return an image as brightness, 0 to 1, `(height, width)`."""
    image = np.asarray(image, "float32") / (255 if image.dtype == np.uint8 else 1)
    return image @ np.float32([0.299, 0.587, 0.114]) if image.shape[-1] == 3 else image.mean(-1)


def plot_query(
    models: Mapping[str, keras.Model],
    images: ArrayLike,
    path: str | os.PathLike,
    query: tuple[int, int] | None = None,
    blocks: Sequence[str] | None = None,
    shown: np.ndarray | None = None,
) -> Picture:
    """Plot the attention of one patch: for each model, one row per block, one column per head.

    The maps are those of the softmax, before `on_weights`; class blocks have no queries of patches.
    ConViT, Figures 7, 16 and 17: the patch is marked by a red box, colors are logarithmic, and
    heads with a gate are labeled with it, from white (content) to red (position). Maps are
    averaged over the images, as in Figure 15 (100 images); the other figures are of one image.

    Args:
        models: Models by label.
        images: `(batch, height, width, channels)`, preprocessed for the models.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        query: Row and column of the patch; None means the middle one.
        blocks: Names of the blocks to draw; None means all with queries of patches.
        shown: The images to show; the first one is drawn. As in `plot_class_attention`.
    """
    images = ops.convert_to_numpy(images)
    image = (scaled_to_1(images[:1]) if shown is None else shown)[0]
    rows = []
    for label, model in models.items():
        for block in trace(model, images, blocks):
            patches = block.num_patches
            if block.softmax is None or not patches or block.softmax.shape[2] < patches:
                continue
            query_at = (block.grid[0] // 2, block.grid[1] // 2) if query is None else query
            maps = block.softmax[:, :, -patches:, -patches:].mean(0)
            maps = maps.reshape(-1, *block.grid, *block.grid)[:, *query_at]
            low = max(maps.min(), maps.max() * 1e-4)
            row = [
                {"picture": np.maximum(each, low), "title": f"head {head}", "mark": query_at}
                for head, each in enumerate(maps)
            ]
            for cell, gate in zip(row, [] if block.gates is None else block.gates, strict=False):
                cell["title"] += f", gate {gate:.2f}"
                cell["behind"] = (1, 1 - float(gate), 1 - float(gate))
            patch = np.divide(image.shape[:2], block.grid)
            title = f"{label}, {block_label(block.name)}"
            rows.append([{"image": image, "title": title, "mark": (*query_at, *patch)}, *row])
    return _draw(rows, path, (1.5, 1.6), "softmax weight", norm="log")


def plot_maps(
    models: Mapping[str, keras.Model],
    images: ArrayLike,
    path: str | os.PathLike,
    blocks: Sequence[str] | None = None,
    before: bool = False,
    by_entropy: int | None = None,
) -> Picture:
    """Plot whole maps: one row per model, one column per block; queries down, keys across.

    The maps that multiply the values, averaged over images and heads and divided by their
    largest weight (DeepViT, Figure 6).

    Args:
        models: Models by label, each with all of `blocks`.
        images: `(batch, height, width, channels)`, preprocessed for the models.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        blocks: Names of the blocks to draw; None draws all with more than one query.
        before: Whether to also draw the maps before modification, in a row above, if a block
            modifies them (Refiner, Figure 5).
        by_entropy: If set, draws this many maps of single heads instead, of the softmax on the
            first image, from the lowest to the highest entropy (Context Broadcasting, Figure 3b).
    """
    rows = []
    for label, model in models.items():
        traces = trace(model, images[:1] if by_entropy else images, blocks)
        traces = [block for block in traces if block.maps is not None and block.maps.shape[2] > 1]
        if by_entropy:
            rows.append(_whole_maps(_by_entropy(traces, by_entropy), label))
            continue
        if before and any(block.before is not block.maps for block in traces):
            titled = ((block_label(block.name), block.before.mean((0, 1))) for block in traces)
            rows.append(_whole_maps(titled, f"{label}, before"))
            label = f"{label}, after"
        titled = ((block_label(block.name), block.maps.mean((0, 1))) for block in traces)
        rows.append(_whole_maps(titled, label))
    return _draw(rows, path, (1.6, 1.8), "weight / largest of the map")


def _by_entropy(blocks, count):
    """Return titles and maps of heads, evenly spaced from the lowest to the highest entropy."""
    maps = [
        (entropy(weights).mean(), f"{block_label(block.name)}, head {head}", weights)
        for block in blocks
        if block.softmax is not None
        for head, weights in enumerate(block.softmax[0])
    ]
    maps.sort(key=lambda each: each[0])
    indices = np.linspace(0, len(maps) - 1, min(count, len(maps))).astype(int)
    chosen = (maps[index] for index in indices)
    return [(f"{title}\nentropy {nats:.2f}", weights) for nats, title, weights in chosen]


def _whole_maps(titled, label):
    """Return a row of whole maps, each divided by its largest weight."""
    row = [
        {"picture": weights / max(np.abs(weights).max(), TINY), "title": title, "xlabel": "keys"}
        for title, weights in titled
    ]
    row[0]["ylabel"] = f"{label}\nqueries"
    return row


def _draw(rows, path, cell_size, bar, norm="linear"):
    """Draw rows of cells: None, an `image`, or a `picture` of weights, with a `title`.

    The weights of a row have one scale, with a bar at its end; rows of the same scale share one.
    A title is not repeated below itself.
    """
    scales = [_scale(row, norm) for row in rows]
    shared = all(scale == scales[0] for scale in scales)
    with drawing(path, (len(rows), max(map(len, rows))), cell_size) as axes:
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[], frame_on=False)
        titles = {}
        for line, row, scale in zip(axes, rows, scales, strict=True):
            for column, (axis, cell) in enumerate(zip(line, row, strict=False)):
                if cell is None:
                    continue
                heat = _draw_cell(axis, cell, scale)
                if "picture" in cell and titles.get(column) == cell["title"]:
                    axis.set_title("")
                titles[column] = cell["title"]
            if not shared or row is rows[-1]:
                ends = axes if shared else line
                bar_axis = axes[0, 0].figure.colorbar(heat, ax=ends, shrink=0.8, aspect=30).ax
                bar_axis.set_ylabel(bar, fontsize=7)
                bar_axis.tick_params(which="both", labelsize=6)
    return Picture(path).expanduser()


def _scale(row, norm):
    """Return the style of the weights in a row: one scale for all."""
    weights = np.concatenate([np.ravel(c["picture"]) for c in row if c and "picture" in c])
    return colors(weights, 0 if norm == "linear" else None) | {"norm": norm}


def _draw_cell(axis, cell, scale):
    """Draw a cell, which may have the color `behind` its title and labels of its axes.

    A picture may have its transparency, `alpha`, a gray image that it is `over`, and a patch to
    `mark` by its row, column, height and width (by default 1).
    """
    if "image" in cell:
        heat = axis.imshow(one_or_three(np.asarray(cell["image"])), cmap="gray")
    else:
        if "over" in cell:
            axis.imshow(cell["over"], cmap="gray", vmin=0, vmax=1)
        heat = axis.imshow(cell["picture"], alpha=cell.get("alpha"), **scale)
    behind = {"backgroundcolor": cell["behind"]} if "behind" in cell else {}
    axis.set_title(cell["title"], fontsize=7, **behind)
    axis.set_xlabel(cell.get("xlabel", ""), fontsize=7)
    axis.set_ylabel(cell.get("ylabel", ""), fontsize=7)
    if "mark" in cell:
        from matplotlib.patches import Rectangle

        row, column, height, width = (*cell["mark"], 1, 1)[:4]
        corner = column * width - 0.5, row * height - 0.5
        axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="red"))
    return heat
