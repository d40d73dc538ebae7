"""OpenVINO's intermediate representation, by its own converter."""

from pathlib import Path

from keras_vitx.export.formats.base import Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary


def write(graph: Graph, path: Path) -> None:
    """Write an `.xml` file, the graph, and a `.bin` file beside it, the weights."""
    import openvino

    with temporary(Graph(graph.model, graph.outputs)) as folder:
        model = openvino.convert_model(folder)
        openvino.save_model(model, path, compress_to_fp16=graph.half)


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
    companions=(".bin",),
)
