"""LiteRT (TensorFlow Lite), by TensorFlow's converter."""

from pathlib import Path

from keras_vitx.export.formats.saved_model import temporary_saved_model
from keras_vitx.export.graph import Format, Graph, starts_with


def write(graph: Graph, path: Path) -> None:
    """Write a `.tflite` file with the signature `serving_default`."""
    import tensorflow as tf

    with temporary_saved_model(graph, path) as directory:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(directory), signature_keys=["serving_default"]
        )
        if graph.precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())


FORMAT = Format(
    name="litert",
    title="LiteRT data",
    suffix=".tflite",
    backend="tensorflow",
    needs=("tensorflow", "ai_edge_litert"),
    extra="litert",
    write=write,
    matches=starts_with(b"TFL3", at=4),
    float32=True,
    precisions=("float16",),
    # Its batched product lacks int8 inputs with an int32 result.
    quantized=("int4",),
)
