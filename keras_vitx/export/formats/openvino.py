"""OpenVINO's intermediate representation, by its own converter."""

from pathlib import Path

from keras_vitx.export.formats.saved_model import temporary_saved_model
from keras_vitx.export.graph import Format, Graph, starts_with


def write(graph: Graph, path: Path) -> None:
    """Write an `.xml` file, the graph, and a `.bin` file beside it, the weights."""
    import openvino

    with temporary_saved_model(graph, path) as directory:
        model = openvino.convert_model(directory)
        openvino.save_model(model, path, compress_to_fp16=graph.precision == "float16")


FORMAT = Format(
    name="openvino",
    title="OpenVINO data",
    suffix=".xml",
    backend="tensorflow",
    needs=("tensorflow", "openvino"),
    extra="openvino",
    write=write,
    # Its converter lacks TensorFlow's products in bfloat16.
    float32=True,
    matches=starts_with(b"<?xml", b"<net"),
    companion=".bin",
    precisions=("float16",),
    # OpenVINO 2026.4 reads Keras's int8 products wrongly (0.4 of the largest output).
    quantized=("int4",),
)
