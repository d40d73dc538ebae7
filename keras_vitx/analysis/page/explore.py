"""What the page shows, collected in one walk over the blocks per image, and the file."""

import base64
import io
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from numbers import Integral
from pathlib import Path
from string import Template
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from keras_vitx.analysis.measure import MEASURES, Measure, add_sums, check_measure, means
from keras_vitx.analysis.measures import NotProbabilities
from keras_vitx.analysis.pictures import likely_classes
from keras_vitx.analysis.trace import blocks_of, check_model, trace
from keras_vitx.data import preprocess_input
from keras_vitx.files import atomic_write, check_writable
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import nearest

Quantized = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Maps `(heads, queries, keys)`: the smallest weight and the step of each row, and uint8 levels."""

WEB = Path(__file__).parent / "web"
SCRIPTS = ("maps.js", "picture.js", "sheet.js", "charts.js", "page.js")
LEVELS = (256, 48)
"""Levels per row of a map: the second if the page would exceed its limit with the first."""


@dataclass(frozen=True)
class Chart:
    """A measure by depth, with one number per block or per head; `beside` names a dashed line."""

    measure: str
    title: str
    text: str
    beside: str | None = None


BEFORE, LAST = "Similarity to the block before", "Similarity to the last block"
CHARTS = (
    Chart(
        "entropy",
        "Entropy",
        "Of a row of the softmax, in nats: 0 if it looks at one token, the dashed line if it "
        "looks at all tokens alike.",
        beside="uniform_entropy",
    ),
    Chart("nonlocality", "Nonlocality", "How many patches away a patch looks, on average."),
    Chart("gates", "Gates", "Share of positional attention, learned for each head."),
    Chart("head_similarity", "Similarity of heads", "Mean cosine between the maps of two heads."),
    Chart("map_similarity", BEFORE, "Mean cosine of its maps with those of the block before it."),
    Chart("feature_similarity", LAST, "Mean cosine of its tokens with those after the last one."),
    Chart(
        "attention_branch",
        "Attention branch",
        "Norm of what attention adds, divided by the norm of the tokens it is added to.",
    ),
    Chart(
        "mlp_branch",
        "MLP branch",
        "Norm of what the MLP adds, divided by the norm of the tokens it is added to.",
    ),
)
"""The charts, in the order of the page. A chart that no block of a model has is left out."""


def explore(
    model: keras.Model,
    images: Any,
    path: str | os.PathLike,
    blocks: Iterable[int | str] | None = None,
    heads: Literal["mean"] | Iterable[int] | None = None,
    names: Sequence[str] | None = None,
    charts: Sequence[Chart] = CHARTS,
    limit: float = 15.0,
) -> Path:
    """Write an HTML page that shows what the attention of a model does on images.

    The page is one file that needs no server and no network: where each patch and the class
    token look, in every block and head, before the maps are modified (those of the softmax)
    and after (those that multiply the values), the measures of `charts` by depth, and the
    most probable classes. Maps are stored in 256 levels per row; in 48, if the page would
    exceed the limit otherwise.

    Args:
        model: A model of this package, a `Chain`.
        images: What `keras_vitx.preprocess_input` takes: images of any size, as paths, PIL
            images or arrays. They are preprocessed for the model.
        path: Path of the page, `.html`.
        blocks: Numbers (from 0) or names of the blocks whose maps are shown; None shows all.
            The measures are those of all blocks.
        heads: Numbers (from 0) of the heads whose maps are shown, or `"mean"` for the mean
            over heads; None shows all.
        names: One name per image. None takes the names of the files.
        charts: The measures to plot. A chart that no block of the model has is left out.
        limit: The largest size of the page, in millions of bytes.

    Returns:
        The path.

    Raises:
        ValueError: as in `preprocess_input` and `trace`; if the model has no attention maps,
            or not the blocks or heads; if the page would exceed the limit.
        OSError: if an image can't be decoded, or the page can't be written.
    """
    check_model(model, needs_maps=True)
    check_writable(path)
    order = [block.name for block in blocks_of(model)]
    chosen = _chosen_blocks(model, order, blocks)
    heads = _checked_heads(heads)
    images = _as_list(images)
    inputs = preprocess_input(images, model)
    names = _names(images) if names is None else list(names)
    if len(names) != len(inputs):
        raise ValueError(f"`names` must be {len(inputs)}, one per image. Received: {len(names)}.")
    wanted = {name for chart in charts for name in (chart.measure, chart.beside) if name}
    measures = {name: _where_defined(MEASURES[check_measure(name)]) for name in wanted}
    limit = int(limit * 1e6)
    described = {name: {"name": name} for name in order}
    maps: dict[str, Quantized] = {}

    def walk(number, image):
        """Yield the blocks, and keep the maps of those that are chosen."""
        for block in trace(model, image[None]):
            if block.name in chosen:
                stages = _stages(block, heads)
                described[block.name] = {
                    "name": block.name,
                    "grid": block.grid,
                    "shared": block.softmax is None and block.shared is not None,
                    "stages": {stage: one.shape for stage, one in stages.items()},
                }
                for stage, one in stages.items():
                    maps[f"{number}/{block.index}/{stage}"] = quantized(one, LEVELS[0])
                # No attention compresses to a sixth; an error before all images have run.
                if sum(levels.size for *_, levels in maps.values()) > 8 * limit:
                    raise ValueError(_too_large(limit))
            yield block

    entries = []
    for number, (image, name) in enumerate(zip(inputs, names, strict=True)):
        sums = {name: {} for name in measures}
        add_sums(sums, walk(number, image), measures)
        (classes,) = likely_classes(model, image[None])
        entries.append(
            {
                "name": name,
                "source": _picture(image, model.preprocessing),
                "classes": [(each, _rounded(probability)) for each, probability in classes],
                "measures": {
                    each: [_numbers(values.get(block)) for block in order]
                    for each, values in means(sums).items()
                    if values
                },
            }
        )
    facts = {
        "model": model.name,
        "blocks": list(described.values()),
        "images": entries,
        "charts": [vars(chart) for chart in charts],
        "heads": heads,
    }
    for levels in LEVELS:
        if levels != LEVELS[0]:
            maps = {name: quantized(weights(one), levels) for name, one in maps.items()}
        page = _page(facts | {"levels": levels}, maps)
        if len(page) <= limit:
            with atomic_write(path) as temporary:
                temporary.write_bytes(page)
            return Path(path)
    raise ValueError(_too_large(limit, len(page)))


def _where_defined(measure: Measure) -> Measure:
    """Return a measure that leaves out the blocks whose maps are no probabilities."""

    def of_block(block):
        try:
            return measure.of_block(block)
        except NotProbabilities:
            return None

    return replace(measure, of_block=of_block)


def _chosen_blocks(model, order, blocks):
    """Return the names of blocks that are given by number or name."""
    chosen = set()
    for block in order if blocks is None else blocks:
        if block not in (order if isinstance(block, str) else range(len(order))):
            hint = nearest(block, order) if isinstance(block, str) else ""
            raise ValueError(
                f"`blocks`: the model {model.name!r} has blocks 0 to {len(order) - 1}. "
                f"Received: {block!r}. {hint}".rstrip()
            )
        chosen.add(block if isinstance(block, str) else order[block])
    if not chosen:
        raise ValueError("`blocks` must name at least one block.")
    return chosen


def _checked_heads(heads):
    if heads is None or (isinstance(heads, str) and heads == "mean"):
        return heads
    numbers = list(heads) if isinstance(heads, Iterable) else []
    if not numbers or not all(isinstance(head, Integral) for head in numbers):
        raise ValueError(f"`heads` must be numbers of heads or 'mean'. Received: {heads!r}.")
    return [int(head) for head in numbers]


def _stages(block, heads):
    """Return the maps of the only image that the page shows of a block, of some heads."""
    stages = {"after": block.maps}
    if block.before is not block.maps:
        stages = {"before": block.before, **stages}
    return {
        stage: _chosen_heads(maps[0], heads, block.name)
        for stage, maps in stages.items()
        if maps is not None
    }


def _chosen_heads(maps, heads, block):
    """Return the maps `(heads, queries, keys)` of some heads, or their mean as one head."""
    if heads is None:
        return maps
    if heads == "mean":
        return maps.mean(0, keepdims=True)
    for head in heads:
        if head not in range(len(maps)):
            raise ValueError(
                f"`heads`: block {block!r} has heads 0 to {len(maps) - 1}. Received: {head!r}."
            )
    return maps[heads]


def _as_list(images):
    """Return images as `preprocess_input` counts them, one by one."""
    is_one = isinstance(images, (str, os.PathLike, Image.Image))
    if is_one or not (isinstance(images, (list, tuple)) or np.ndim(images) == 4):
        return [images]
    return list(images)


def _names(images):
    return [
        Path(image).name if isinstance(image, (str, os.PathLike)) else f"image {number}"
        for number, image in enumerate(images, 1)
    ]


def quantized(maps: np.ndarray, count: int) -> Quantized:
    """Return the smallest weight of each row, the step between levels, and uint8 levels."""
    low, high = maps.min(-1), maps.max(-1)
    step = (high - low) / (count - 1)
    levels = (maps - low[..., None]) / np.where(step > 0, step, 1)[..., None]
    return low.astype("<f4"), step.astype("<f4"), np.rint(levels).astype("uint8")


def weights(maps: Quantized) -> np.ndarray:
    """Return the weights of quantized maps, which are off by at most half a step."""
    low, step, levels = maps
    return low[..., None] + step[..., None] * levels


def _rounded(number):
    """Return the digits that the page shows, which has no infinite numbers."""
    return float(f"{number:.5g}") if np.isfinite(number) else None


def _numbers(value):
    return None if value is None else [_rounded(number) for number in np.ravel(value)]


def _picture(image: np.ndarray, preprocessing: Preprocessing) -> str:
    """Return a preprocessed image, as the model sees it, as the address of a PNG."""
    pixels = (image * np.float32(preprocessing.std) + np.float32(preprocessing.mean)) * 255
    pixels = np.rint(pixels.clip(0, 255)).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _page(facts: dict[str, Any], maps: dict[str, Quantized]) -> bytes:
    """Return the page: the template with style, script, facts and maps inside."""

    def packed(arrays):
        content = b"".join(array.tobytes() for array in arrays)
        return base64.b64encode(zlib.compress(content)).decode()

    def read(*names):
        return "\n".join((WEB / name).read_text("utf-8") for name in names)

    scripts = "\n".join(
        f'<script type="text/plain" data-maps="{name}">{packed(arrays)}</script>'
        for name, arrays in maps.items()
    )
    return (
        Template(read("page.html"))
        .substitute(
            title=escape(f"Attention of {facts['model']}"),
            style=read("page.css"),
            script=read(*SCRIPTS),
            # A name must not end the script element that it is in.
            facts=json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),
            maps=scripts,
        )
        .encode("utf-8")
    )


def _too_large(limit: int, size: int | None = None) -> str:
    takes = "more" if size is None else f"{size / 1e6:.1f} MB, more"
    return (
        f"The page would take {takes} than the limit of {limit / 1e6:g} MB. Show fewer images, "
        "fewer blocks (`blocks`, such as 0,11,23), fewer heads (`heads`, such as 0,1) or only "
        "their mean (`heads`: mean), or raise `limit`."
    )
