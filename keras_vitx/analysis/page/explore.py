"""What the page shows, collected in one walk over the blocks per image, and the file."""

import base64
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from numbers import Integral
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from keras_vitx.analysis.page.charts import CHARTS, Chart, Measured
from keras_vitx.analysis.page.packed import Quantized
from keras_vitx.analysis.trace import BlockTrace, blocks_of, check_model, trace
from keras_vitx.classifier import outputs_of
from keras_vitx.data import decode_predictions, preprocess_input
from keras_vitx.files import atomic_write, check_writable
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import nearest

WEB = Path(__file__).parent / "web"
SCRIPTS = ("maps.js", "picture.js", "sheet.js", "charts.js", "page.js")
LEVELS = (256, 48)
"""Levels per row of a map: the second if the page would exceed its limit with the first."""


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
    check_model(model)
    if not any(block.has_maps for block in blocks_of(model)):
        raise ValueError(f"The model {model.name!r} has no attention maps.")
    check_writable(path)
    chosen = _chosen_blocks(model, blocks)
    heads = _checked_heads(heads)
    images = _as_list(images)
    inputs = preprocess_input(images, model)
    names = _names(images) if names is None else list(names)
    if len(names) != len(inputs):
        raise ValueError(f"`names` must be {len(inputs)}, one per image. Received: {len(names)}.")

    limit = int(limit * 1e6)
    maps = _Maps(limit)
    entries = []
    for number, (image, name) in enumerate(zip(inputs, names, strict=True)):
        measured = Measured(tuple(charts))
        for block in trace(model, image[None]):
            measured.add(block)
            if block.name in chosen:
                maps.add(number, block, heads)
        entries.append(
            {
                "name": name,
                "source": _picture(image, model.preprocessing),
                "classes": _classes(model, image[None]),
                "measures": measured.by_block([block.name for block in blocks_of(model)]),
            }
        )
    facts = {
        "model": model.name,
        "blocks": [maps.shapes.get(block.name, {"name": block.name}) for block in blocks_of(model)],
        "images": entries,
        "charts": [vars(chart) for chart in charts],
        "heads": heads,
    }
    for levels in LEVELS:
        page = _page(facts | {"levels": levels}, maps.texts(levels))
        if len(page) <= limit:
            with atomic_write(path) as temporary:
                temporary.write_bytes(page)
            return Path(path)
    raise ValueError(_too_large(limit, len(page)))


class _Maps:
    """The maps of all images: their shapes by block, and their levels."""

    def __init__(self, limit: int):
        self.limit = limit
        self.shapes: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, Quantized] = {}
        self.size = 0

    def add(self, image: int, block: BlockTrace, heads: Any) -> None:
        stages = {"before": block.before, "after": block.maps}
        if block.before is block.maps:
            del stages["before"]
        shapes = {}
        for stage, maps in stages.items():
            if maps is None:
                continue
            maps = _chosen_heads(maps[0], heads, block.name)
            shapes[stage] = list(maps.shape)
            self.kept[f"{image}/{block.index}/{stage}"] = Quantized.of(maps)
            self.size += maps.size
        self.shapes[block.name] = {
            "name": block.name,
            "grid": block.grid,
            "carried": block.softmax is None and block.carried is not None,
            "stages": shapes,
        }
        # No attention compresses to a sixth; an error before all images have run.
        if self.size > 8 * self.limit:
            raise ValueError(_too_large(self.limit))

    def texts(self, levels: int) -> Iterator[tuple[str, str]]:
        for name, maps in self.kept.items():
            yield name, (maps if levels == LEVELS[0] else Quantized.of(maps.maps(), levels)).text()


def _page(facts: dict[str, Any], texts: Iterable[tuple[str, str]]) -> bytes:
    """Return the page: the template with style, script, facts and maps inside."""

    def read(*names):
        return "\n".join((WEB / name).read_text("utf-8") for name in names)

    maps = "\n".join(
        f'<script type="text/plain" data-maps="{name}">{text}</script>' for name, text in texts
    )
    return (
        Template(read("page.html"))
        .substitute(
            title=escape(f"Attention of {facts['model']}"),
            style=read("page.css"),
            script=read(*SCRIPTS),
            # A name must not end the script element that it is in.
            facts=json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),
            maps=maps,
        )
        .encode("utf-8")
    )


def _chosen_blocks(model: keras.Model, blocks: Iterable[int | str] | None) -> set[str]:
    known = [block.name for block in blocks_of(model)]
    chosen = list(range(len(known)) if blocks is None else blocks)
    for block in chosen:
        if block not in (known if isinstance(block, str) else range(len(known))):
            hint = nearest(block, known) if isinstance(block, str) else ""
            raise ValueError(
                f"`blocks`: the model {model.name!r} has blocks 0 to {len(known) - 1}. "
                f"Received: {block!r}. {hint}".rstrip()
            )
    if not chosen:
        raise ValueError("`blocks` must name at least one block.")
    return {block if isinstance(block, str) else known[block] for block in chosen}


def _checked_heads(heads: Any) -> list[int] | Literal["mean"] | None:
    if heads is None or (isinstance(heads, str) and heads == "mean"):
        return heads
    numbers = list(heads) if isinstance(heads, Iterable) else []
    if not numbers or not all(isinstance(head, Integral) for head in numbers):
        raise ValueError(f"`heads` must be numbers of heads or 'mean'. Received: {heads!r}.")
    return [int(head) for head in numbers]


def _chosen_heads(maps: np.ndarray, heads: Any, block: str) -> np.ndarray:
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


def _classes(model: keras.Model, image: np.ndarray) -> list[tuple[str, float]]:
    """Return the names and probabilities of the five most probable classes, if there are any."""
    try:
        outputs = outputs_of(model)
    except ValueError:  # Without a classifier (include_top=False).
        return []
    names = getattr(model, "class_names", None)
    if names is None and outputs.classes != 1000:
        names = [f"class {index}" for index in range(outputs.classes)]
    predicted = outputs.probabilities(model.predict_on_batch(image))
    (best,) = decode_predictions(predicted, 5, SimpleNamespace(class_names=names))
    return [(name, float(f"{probability:.5g}")) for _, name, probability in best]


def _picture(image: np.ndarray, preprocessing: Preprocessing) -> str:
    """Return a preprocessed image, as the model sees it, as the address of a PNG."""
    pixels = (image * np.float32(preprocessing.std) + np.float32(preprocessing.mean)) * 255
    pixels = np.rint(pixels.clip(0, 255)).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _as_list(images: Any) -> list[Any]:
    """Return images as `preprocess_input` counts them, one by one."""
    if isinstance(images, (list, tuple)):
        return list(images)
    if isinstance(images, (str, os.PathLike, Image.Image)) or np.ndim(images) != 4:
        return [images]
    return list(images)


def _names(images: list[Any]) -> list[str]:
    return [
        Path(image).name if isinstance(image, (str, os.PathLike)) else f"image {number}"
        for number, image in enumerate(images, 1)
    ]


def _too_large(limit: int, size: int | None = None) -> str:
    takes = "more" if size is None else f"{size / 1e6:.1f} MB, more"
    return (
        f"The page would take {takes} than the limit of {limit / 1e6:g} MB. Show fewer images, "
        "fewer blocks (`blocks`, such as 0,11,23), fewer heads (`heads`, such as 0,1) or only "
        "their mean (`heads`: mean), or raise `limit`."
    )
