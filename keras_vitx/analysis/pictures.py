"""Pictures of attention maps, beside the images they belong to."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import keras
import numpy as np

from keras_vitx.analysis.attention import class_attention, saliency
from keras_vitx.analysis.figures import drawing, log_scale, mark
from keras_vitx.analysis.measures import query_maps, scaled_by_maximum, sorted_by_entropy
from keras_vitx.analysis.trace import trace


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
    columns = {name: saliency(scores, images.shape[1:3]) for name, scores in maps.items()}
    with drawing(path, (len(images), 1 + len(columns)), (2, 2.2)) as axes:
        for row, image in enumerate(_shown(images, shown)):
            _image(axes[row, 0], image, titles[row] if row < len(titles) else "image")
            for axis, (name, salient) in zip(axes[row, 1:], columns.items(), strict=True):
                axis.imshow(salient[row], cmap="cividis", vmin=0, vmax=1)
                axis.set_title(name, fontsize=8)
        _without_axes(axes)
    return Path(path)


def plot_class_heads(
    model: keras.Model, images: Any, path: str | os.PathLike, shown: np.ndarray | None = None
) -> Path:
    """Plot the attention of the class token per head: for each image, one row per block.

    CaiT, Figure 6, with the class blocks as rows. Arguments, result and errors as in
    `plot_class_attention`.
    """
    images = keras.ops.convert_to_numpy(images)
    maps = class_attention(model, images)
    heads = max(scores.shape[1] for scores in maps.values())
    with drawing(path, (len(images) * len(maps), 1 + heads), (1.5, 1.6)) as axes:
        for index, image in enumerate(_shown(images, shown)):
            rows = axes[index * len(maps) : (index + 1) * len(maps)]
            _image(rows[0, 0], image, "image")
            for row, (name, scores) in zip(rows, maps.items(), strict=True):
                for head, scored in enumerate(scores[index]):
                    row[1 + head].imshow(scored, cmap="cividis")
                    row[1 + head].set_title(f"{name}\nhead {head + 1}", fontsize=7)
        _without_axes(axes)
    return Path(path)


def plot_saliency(
    model: keras.Model,
    images: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    least: float = 0.1,
    shown: np.ndarray | None = None,
) -> Path:
    """Plot the regions of focus: gray images modulated by the saliency of a class block.

    CaiT, Section 5.2 and Figure 7: the first block with the class token; for each image, itself
    on the left, and the classes above 10 % as the title.

    Args:
        model: A model with a class token, a `Chain`, that returns probabilities or logits.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        class_names: Names of the classes; None takes those of the model, or numbers.
        least: Probability above which a class is listed.
        shown: As in `plot_class_attention`.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `class_attention`.
    """
    images = keras.ops.convert_to_numpy(images)
    first = next(iter(class_attention(model, images).values()))
    salient = saliency(first, images.shape[1:3])
    names = class_names or getattr(model, "class_names", None)
    with drawing(path, (len(images), 2), (2, 2.3)) as axes:
        for row, image, focus, predicted in zip(
            axes, _shown(images, shown), salient, _probabilities(model, images), strict=True
        ):
            likely = [int(i) for i in np.argsort(-predicted) if predicted[i] > least]
            said = [f"{names[i] if names else i} ({100 * predicted[i]:.0f}%)" for i in likely]
            _image(row[0], image, "")
            row[1].imshow(_gray(image) * focus, cmap="cividis")
            row[1].set_title(_in_lines(said), fontsize=7)
        _without_axes(axes)
    return Path(path)


def plot_query(
    models: Mapping[str, keras.Model],
    images: Any,
    path: str | os.PathLike,
    query: tuple[int, int] | None = None,
    blocks: Sequence[str] | None = None,
    shown: np.ndarray | None = None,
) -> Path:
    """Plot the attention of one patch: for each model, one row per block, one column per head.

    ConViT, Figures 7, 16 and 17: the patch is marked by a red box, colours are logarithmic, and
    heads with a gate are labelled with it, from white (content) to red (position). Maps are
    averaged over the images, as in Figure 15 (100 images); give one image for the others.

    Args:
        models: Models by label.
        images: `(batch, height, width, channels)`, preprocessed for the models.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        query: Row and column of the patch; None takes the middle one.
        blocks: Names of the blocks to draw; None takes all in which the patches have queries.
        shown: The images to show; the first one is drawn. As in `plot_class_attention`.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `trace`; if no block has queries of patches, or the query is not on
            the grid.
    """
    images = keras.ops.convert_to_numpy(images)
    rows = []
    for label, model in models.items():
        for block in trace(model, images, blocks):
            if block.softmax is None or not block.grid or block.softmax.shape[2] == 1:
                continue
            place = query or (block.grid[0] // 2, block.grid[1] // 2)
            maps = query_maps(block.softmax, block.grid, *place).mean(0)
            rows.append((f"{label}\n{block.name}", maps, block.gates, place, block.grid))
    if not rows:
        raise ValueError("No block of the models has attention from patches to patches.")
    heads = max(len(maps) for _, maps, *_ in rows)
    image = _shown(images, shown)[0]
    with drawing(path, (len(rows), 1 + heads), (1.4, 1.5)) as axes:
        for row, (label, maps, gates, place, grid) in zip(axes, rows, strict=True):
            _image(row[0], image, label)
            mark(row[0], *place, *np.divide(image.shape[:2], grid))
            scale = log_scale(max(maps.min(), maps.max() * 1e-4), maps.max())
            for head, (axis, scored) in enumerate(zip(row[1:], maps, strict=False)):
                axis.imshow(np.maximum(scored, scale.vmin), cmap="viridis", norm=scale)
                mark(axis, *place)
                if gates is not None:
                    gate = float(gates[head])
                    colour = (1, 1 - gate, 1 - gate)
                    axis.set_title(f"{gate:.2f}", fontsize=7, backgroundcolor=colour)
        _without_axes(axes)
    return Path(path)


def plot_maps(
    models: Mapping[str, keras.Model],
    images: Any,
    path: str | os.PathLike,
    blocks: Sequence[str] | None = None,
) -> Path:
    """Plot whole maps: one row per model, one column per block.

    DeepViT, Figure 6: the maps that multiply the values, averaged over images and heads and
    divided by their maximum.

    Args:
        models: Models by label, with blocks of the same names where `blocks` is given.
        images: `(batch, height, width, channels)`, preprocessed for the models.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        blocks: Names of the blocks to draw; None draws all with more than one query.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `trace`; if a model has no maps.
    """
    rows = {}
    for label, model in models.items():
        means = {b.name: b.maps.mean((0, 1)) for b in trace(model, images, blocks) if _has_maps(b)}
        if not means:
            raise ValueError(f"The model {model.name!r} has no attention maps.")
        rows[label] = means
    return _rows_of_maps(rows, path)


def plot_refined_maps(
    model: keras.Model, images: Any, path: str | os.PathLike, blocks: Sequence[str] | None = None
) -> Path:
    """Plot the maps before modification (top) and those that multiply the values (bottom).

    Refiner, Figure 5: before and after the refiner; the mean over images and heads, divided by
    the maximum. Arguments, result and errors as in `plot_maps`, for one model.
    """
    rows: dict[str, dict[str, np.ndarray]] = {"before": {}, "after": {}}
    for block in trace(model, images, blocks):
        if _has_maps(block):
            rows["before"][block.name] = block.before.mean((0, 1))
            rows["after"][block.name] = block.maps.mean((0, 1))
    if not rows["after"]:
        raise ValueError(f"The model {model.name!r} has no attention maps.")
    return _rows_of_maps(rows, path)


def plot_sorted_maps(
    model: keras.Model, images: Any, path: str | os.PathLike, count: int = 8
) -> Path:
    """Plot maps from the lowest to the highest entropy, evenly chosen among all of one image.

    Context Broadcasting, Figure 3b: maps of the softmax, of all blocks and heads; the entropy
    is the title.

    Args:
        model: A model of this package, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model; the first one
            counts.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        count: Number of maps.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `trace`; if the model has no maps with more than one query.
    """
    found = []
    for block in trace(model, images[:1]):
        if block.softmax is not None and _has_maps(block):
            maps, entropies = sorted_by_entropy(block.softmax)
            found += zip(entropies, maps, strict=True)
    if not found:
        raise ValueError(f"The model {model.name!r} has no attention maps.")
    found.sort(key=lambda pair: pair[0])
    chosen = [found[i] for i in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)]
    with drawing(path, (1, len(chosen)), (1.6, 1.9)) as axes:
        for axis, (entropy, scores) in zip(axes[0], chosen, strict=True):
            axis.imshow(scores, cmap="viridis")
            axis.set_title(f"{entropy:.2f}", fontsize=8)
        _without_axes(axes)
    return Path(path)


def _has_maps(block):
    return block.maps is not None and block.maps.shape[2] > 1


def _rows_of_maps(rows, path):
    columns = max(map(len, rows.values()))
    with drawing(path, (len(rows), columns), (1.6, 1.8)) as axes:
        for line, (label, maps) in zip(axes, rows.items(), strict=True):
            for axis, (block, scores) in zip(line, maps.items(), strict=False):
                scaled = scaled_by_maximum(scores)
                axis.imshow(scaled, cmap="viridis", vmin=min(0, scaled.min()), vmax=1)
                axis.set_title(f"{label}\n{block}", fontsize=7)
        _without_axes(axes)
    return Path(path)


def _shown(images, shown):
    if shown is not None:
        return shown
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    return (images - low) / np.maximum(high - low, np.finfo("float32").tiny)


def _in_lines(names):
    """Join names by commas, in lines of at most 28 characters that break at commas only."""
    whole = ", ".join(name.replace(" ", "\xa0") for name in names)
    return fill(whole, 28, break_on_hyphens=False).replace("\xa0", " ")


def _gray(image):
    """Return an image as brightness, 0 to 1, `(height, width)`."""
    image = np.asarray(image, "float32") / (255 if image.dtype == np.uint8 else 1)
    return image @ np.float32([0.299, 0.587, 0.114]) if image.shape[-1] == 3 else image.mean(-1)


def _probabilities(model, images):
    outputs = np.asarray(keras.ops.convert_to_numpy(model.predict(images, verbose=0)), "float32")
    if outputs.min() < 0 or np.abs(outputs.sum(-1) - 1).max() > 0.02:
        outputs = np.exp(outputs - outputs.max(-1, keepdims=True))
    return outputs / outputs.sum(-1, keepdims=True)


def _image(axis, image, title):
    axis.imshow(np.squeeze(image), cmap="gray")
    axis.set_title(title, fontsize=8)


def _without_axes(axes):
    for axis in axes.flat:
        axis.set_axis_off()
