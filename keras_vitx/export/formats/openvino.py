"""OpenVINO's intermediate representation, by its own converter."""

import logging
from pathlib import Path

from keras_vitx.export.formats.base import Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary_saved_model

WEIGHTS = {"int8": "int8_sym", "int4": "int4_sym"}
"""Modes of NNCF."""
GROUP = 32
"""Weights that share a scale in int4."""


def write(graph: Graph, path: Path) -> None:
    """Write an `.xml` file, the graph, and a `.bin` file beside it, the weights."""
    import openvino

    with temporary_saved_model(graph, path) as folder:
        model = openvino.convert_model(folder)
        if graph.precision in WEIGHTS or graph.precision == "int8-static":
            model = _quantize(model, graph)
        openvino.save_model(model, path, compress_to_fp16=graph.precision == "float16")


def _quantize(model, graph: Graph):
    import nncf

    nncf.set_log_level(logging.ERROR)
    if graph.precision == "int8-static":
        images = [image[None] for image in graph.calibration]
        transformer = nncf.ModelType.TRANSFORMER
        return nncf.quantize(
            model, nncf.Dataset(images), model_type=transformer, subset_size=len(images)
        )
    options = {}
    if graph.precision == "int4":
        # A scale per group; products whose width is not a multiple of it are in int8.
        ignore = nncf.GroupSizeFallbackMode.IGNORE
        options["group_size"] = GROUP
        options["advanced_parameters"] = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=ignore
        )
    mode = nncf.CompressWeightsMode(WEIGHTS[graph.precision])
    return nncf.compress_weights(model, mode=mode, **options)


FORMAT = Format(
    name="openvino",
    title="OpenVINO data",
    suffix=".xml",
    backend="tensorflow",
    needs=("tensorflow", "openvino"),
    extra="openvino",
    write=write,
    # Its converter lacks TensorFlow's products in bfloat16, and OpenVINO 2026.4 reads Keras's int8
    # products wrongly (0.4 of the largest output).
    float32=True,
    float8=False,
    matches=starts_with(b"<?xml", b"<net"),
    companion=".bin",
    precisions=("float16", "int8", "int8-static", "int4"),
    quantizer="nncf",
)
