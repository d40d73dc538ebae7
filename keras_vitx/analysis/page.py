"""A self-contained HTML page with the attention maps of a model on images."""

import base64
import io
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from keras_vitx.analysis.attribution import attribute
from keras_vitx.analysis.drawing import block_label
from keras_vitx.analysis.measure import MEASURES, add_sums, means, where_defined
from keras_vitx.analysis.pictures import likely_classes, one_or_three
from keras_vitx.analysis.trace import as_array, trace
from keras_vitx.checks import check
from keras_vitx.data import preprocess_input
from keras_vitx.files import atomic_write, local_path
from keras_vitx.layers import ClassToken, RegisterTokens
from keras_vitx.preprocessing import Preprocessing

Quantized = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Maps `(heads, queries, keys)`: minimum, step and exact sum of each row, and uint8 levels."""

WEB = resources.files(__package__) / "web"
SCRIPTS = ("maps.js", "picture.js", "sheet.js", "charts.js", "page.js")
LEVELS = 48
"""Levels per row of a map."""


@dataclass(frozen=True)
class Chart:
    """A measure by depth, with one number per block or per head; `beside` is a dashed line."""

    measure: str
    title: str
    text: str
    beside: str | None = None


BEFORE, LAST = "Similarity to the block before", "Similarity to the last block"
BRANCH = "Norm of its output, relative to the norm of the tokens it is added to."
CHARTS = (
    Chart("entropy", "Entropy", "In nats: 0 for one token; dashed: uniform.", "uniform_entropy"),
    Chart("nonlocality", "Nonlocality", "Mean distance of attention, in patches."),
    Chart("sink_share", "Sinks", "Share of all attention that the most attended token gets."),
    Chart("gates", "Gates", "Share of positional attention, learned for each head."),
    Chart("head_similarity", "Similarity of heads", "Mean cosine between the maps of two heads."),
    Chart("map_similarity", BEFORE, "Mean cosine of its maps with those of the block before it."),
    Chart("feature_similarity", LAST, "Mean cosine of its tokens with those after the last one."),
    Chart("attention_branch", "Attention branch", BRANCH),
    Chart("mlp_branch", "MLP branch", BRANCH),
)
"""The charts, in the order of the page. One that applies to no block of a model is omitted."""


def explore(
    model: keras.Model,
    images: Any,
    path: str | os.PathLike,
    blocks: Iterable[int | str] | None = None,
    heads: Literal["mean"] | Iterable[int] | None = None,
    names: Sequence[str] | None = None,
    charts: Sequence[Chart] = CHARTS,
    limit: float = 15.0,
    about: str = "",
) -> Path:
    """Write an HTML page with the attention of a model on images.

    The page is one file that needs no server and no network. It shows the attention of each patch
    and the class token, in every block and head, before the maps are modified (those of the
    softmax) and after (those that multiply the values), what the prediction owes to each patch (the
    two methods of `attribute` that read maps), the measures of `charts` by depth, and the most
    probable classes. Maps are stored in 48 levels per row.

    Args:
        model: A model of this package, a `Chain`.
        images: Images of any size, as paths, PIL images or arrays; they are preprocessed for the
            model by `keras_vitx.preprocess_input`.
        path: Path of the page, `.html`.
        blocks: Numbers (from 0) or names of the blocks whose maps are shown; None shows all.
            Measures are always of all blocks.
        heads: Numbers (from 0) of the heads whose maps are shown, or `"mean"` for the mean over
            heads; None shows all.
        names: One name per image. None means the file names.
        charts: The measures to plot. One that applies to no block of the model is omitted.
        limit: The largest size of the page, in millions of bytes.
        about: What else the page says about the model, such as its file.

    Returns:
        The path.

    Raises:
        ValueError: as in `preprocess_input` and `attribute`; if the page would exceed the limit.
        OSError: if an image can't be decoded, or the page can't be written.
    """
    path = local_path(path)
    order = [block.name for block in model.blocks]
    known = dict(enumerate(order)) | {name: name for name in order}
    chosen = order if blocks is None else list(blocks)
    for block in chosen:
        check(block in known, f"`blocks` must be names, or numbers below {len(order)}.", block)
    selection = {known[block] for block in chosen}
    heads = heads if heads in (None, "mean") else list(heads)
    inputs = preprocess_input(images, model)
    if names is None:
        files = images if isinstance(images, (list, tuple)) else [images] * len(inputs)
        names = [
            Path(file).name if isinstance(file, (str, os.PathLike)) else f"image {number}"
            for number, file in enumerate(files, 1)
        ]
    names = list(names)
    measure_names = {name for chart in charts for name in (chart.measure, chart.beside) if name}
    measures = {name: where_defined(MEASURES[name]) for name in measure_names}
    entries = {name: {"name": name, "label": block_label(name)} for name in order}
    prefixes = _prefixes(model)
    maps: dict[str, Quantized] = {}

    image_entries = []
    for number, (image, name) in enumerate(zip(inputs, names, strict=True)):
        sums = {name: {} for name in measures}
        add_sums(sums, trace(model, image[None]), measures)
        for block in trace(model, image[None], selection):
            stages = _stages(block, heads)
            entries[block.name] |= {
                "grid": block.grid,
                "prefix": prefixes[block.name],
                "shared": block.softmax is None and block.shared is not None,
                "stages": {stage: one.shape for stage, one in stages.items()},
            }
            for stage, array in stages.items():
                maps[f"{number}/{block.index}/{stage}"] = quantize(array, LEVELS)
        (classes,) = likely_classes(model, image[None])
        methods = ("rollout", "gradient_attention") if classes else ("rollout",)
        image_entries.append(
            {
                "name": name,
                "source": _picture(image, model.preprocessing),
                "classes": [(label, _round(probability)) for label, probability in classes],
                "attributions": {
                    method: _numbers(attribute(model, image[None], method)) for method in methods
                },
                "measures": {
                    each: [_numbers(values.get(block)) for block in order]
                    for each, values in means(sums).items()
                    if values
                },
            }
        )
    # Training moves the shifts of norms away from 0.
    shifts = (as_array(x) for x in model.weights if x.name == "beta")
    is_random = not any(shift.any() for shift in shifts)
    metadata = {
        "model": model.name,
        "size": f"{model.size or model.family}, {model.count_params():,} parameters",
        "weights": "random weights" if is_random else "trained weights",
        "about": ", ".join([*filter(None, [about]), str(date.today())]),
        "blocks": list(entries.values()),
        "images": image_entries,
        "charts": [vars(chart) for chart in charts],
        "grid": model.grid,
        "heads": heads,
        "levels": LEVELS,
    }
    page = _page(metadata, maps)
    rule = f"The page must have at most {limit:g} MB: show fewer images, `blocks` or `heads`."
    check(len(page) <= limit * 1e6, rule, f"{len(page) / 1e6:.1f} MB")
    with atomic_write(path) as temporary:
        temporary.write_bytes(page)
    return path


def _stages(block, heads):
    """Return the maps of a block to show, by stage, for its only image and some heads."""
    stages = {"after": block.maps}
    if block.before is not block.maps:
        stages = {"before": block.before, **stages}
    chosen = slice(None) if heads in (None, "mean") else heads
    for head in () if heads == "mean" else heads or ():
        check(head < block.maps.shape[1], f"`heads` must be below {block.maps.shape[1]}.", head)
    maps = {stage: each[0, chosen] for stage, each in stages.items() if each is not None}
    if heads == "mean":
        return {stage: each.mean(0, keepdims=True) for stage, each in maps.items()}
    return maps


def _prefixes(model):
    """Return the names of the tokens before the patches, by block."""
    names, found = [], {}
    for layer in model.layers:
        found[layer.name] = names
        if isinstance(layer, RegisterTokens):
            names = [*(f"register {1 + i}" for i in range(layer.count)), *names]
        elif isinstance(layer, ClassToken):
            word = "distillation token" if layer.name == "dist_token" else "class token"
            names = [word, *["distillation token"] * (layer.count - 1), *names]
    return found


def quantize(maps: np.ndarray, count: int) -> Quantized:
    """Return the minimum, the step between levels and the sum of each row, and uint8 levels."""
    sums = maps.sum(-1, dtype="float64")
    low, high = maps.min(-1), maps.max(-1)
    step = (high - low) / (count - 1)
    levels = (maps - low[..., None]) / np.where(step > 0, step, 1)[..., None]
    per_row = (array.astype("<f4") for array in (low, step, sums))
    return *per_row, np.rint(levels).astype("uint8")


def _round(number):
    """Round a number to five digits; None for infinite ones and NaN."""
    return float(f"{number:.5g}") if np.isfinite(number) else None


def _numbers(value):
    return None if value is None else [_round(number) for number in np.ravel(value)]


def _picture(image: np.ndarray, preprocessing: Preprocessing) -> str:
    """Return a preprocessed image as the data URL of a PNG."""
    pixels = (image * np.float32(preprocessing.std) + np.float32(preprocessing.mean)) * 255
    pixels = np.rint(one_or_three(pixels.clip(0, 255))).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _page(metadata: dict[str, Any], maps: dict[str, Quantized]) -> bytes:
    """Fill the template with style, script, metadata and maps."""

    def pack(arrays):
        content = b"".join(array.tobytes() for array in arrays)
        return base64.b64encode(zlib.compress(content)).decode()

    def read(*names):
        return "\n".join((WEB / name).read_text("utf-8") for name in names)

    scripts = "\n".join(
        f'<script type="text/plain" data-maps="{name}">{pack(arrays)}</script>'
        for name, arrays in maps.items()
    )
    return (
        Template(read("page.html"))
        .substitute(
            title=escape(f"Attention of {metadata['model']}"),
            style=read("page.css"),
            script=read(*SCRIPTS),
            # A name must not close the script element.
            metadata=json.dumps(metadata, allow_nan=False).replace("<", "\\u003c"),
            maps=scripts,
        )
        .encode("utf-8")
    )
