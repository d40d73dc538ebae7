"""OpenVINO's intermediate representation, by its own converter."""

import logging
import re
import shutil
from pathlib import Path

from keras_vitx.export.formats.base import Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary

WEIGHTS = {"int8": "int8_sym", "int4": "int4_sym"}
"""Modes of NNCF."""
GROUP = 32
"""Weights that share a scale in int4."""
ALIGNMENT = 4096
"""Bytes at whose multiples the weights may begin."""


def write(graph: Graph, path: Path) -> None:
    """Write an `.xml` file, the graph, and a `.bin` file beside it, the weights."""
    import openvino

    with temporary(Graph(graph.model, graph.outputs)) as folder:
        model = openvino.convert_model(folder)
        if graph.precision in WEIGHTS or graph.precision == "int8-static":
            model = _quantized(model, graph)
        openvino.save_model(model, path, compress_to_fp16=graph.precision == "float16")


def _quantized(model, graph: Graph):
    import nncf

    nncf.set_log_level(logging.ERROR)
    if graph.precision == "int8-static":
        images = nncf.Dataset([image[None] for image in graph.calibration])
        return nncf.quantize(
            model,
            images,
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(graph.calibration),
        )
    options = {}
    if graph.precision == "int4":
        # A scale for 32 weights; products whose width is no multiple of it are in int8.
        ignore = nncf.GroupSizeFallbackMode.IGNORE
        options["group_size"] = GROUP
        options["advanced_parameters"] = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=ignore
        )
    mode = nncf.CompressWeightsMode(WEIGHTS[graph.precision])
    return nncf.compress_weights(model, mode=mode, **options)


def move(new: Path, path: Path) -> None:
    """Put a new pair of files in the place of another.

    Two files can't be renamed in one step. So that a kill between two steps leaves a whole model,
    the file of weights has the old weights and the new ones for a while, from byte n on; the
    graph that counts its offsets from n takes the place of the old graph:

    | weights | old | old, new | old, new | new, new | new, new | new |
    |---|---|---|---|---|---|---|
    | graph | old | old | new, from n | new, from n | new | new |
    """
    weights, placed = new.with_suffix(".bin"), path.with_suffix(".bin")
    if not path.exists() or not placed.exists():
        try:
            # A link, by which `check_free` knows whose it is if there is no graph.
            placed.hardlink_to(weights)
        except OSError:
            weights.replace(placed)
        new.replace(path)
        return
    larger = max(file.stat().st_size for file in (weights, placed))
    start = -(-larger // ALIGNMENT) * ALIGNMENT
    both, twice, later = (new.with_name(name) for name in ("both", "twice", "later"))
    _join(both, placed, weights, start)
    _join(twice, weights, weights, start)
    later.write_text(_with_offsets_from(start, new.read_text()))
    both.replace(placed)
    later.replace(path)
    twice.replace(placed)
    new.replace(path)
    weights.replace(placed)


def _join(file: Path, first: Path, second: Path, start: int) -> None:
    with file.open("wb") as joined:
        for part, offset in ((first, 0), (second, start)):
            joined.seek(offset)
            with part.open("rb") as content:
                shutil.copyfileobj(content, joined)


def _with_offsets_from(start: int, graph: str) -> str:
    def later(found):
        return f"{found[1]}{int(found[2]) + start}{found[3]}"

    return re.sub(r'(<data [^>]*\boffset=")(\d+)(" size="\d+")', later, graph)


FORMAT = Format(
    name="openvino",
    title="OpenVINO",
    suffix=".xml",
    backend="tensorflow",
    needs=("tensorflow", "openvino"),
    extra="openvino",
    write=write,
    # OpenVINO 2026.4 reads int8 products of Keras wrongly (0.4 of the largest output).
    int8_weights=True,
    is_one=starts_with(b"<?xml", b"<net"),
    move=move,
    companions=(".bin",),
    precisions=("float16", "int8", "int8-static", "int4"),
    quantizer="nncf",
)
