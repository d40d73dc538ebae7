"""LiteRT (TensorFlow Lite), by TensorFlow's converter."""

from pathlib import Path

from keras_vitx.export.formats.base import Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary


def write(graph: Graph, path: Path) -> None:
    """Write a `.tflite` file with the signature `serving_default`."""
    import tensorflow as tf

    with temporary(Graph(graph.model, graph.outputs)) as folder:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(folder), signature_keys=["serving_default"]
        )
        if graph.half:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())


FORMAT = Format(
    name="litert",
    title="LiteRT",
    suffix=".tflite",
    backend="tensorflow",
    needs=("tensorflow", "ai_edge_litert"),
    extra="litert",
    write=write,
    # Its batched product takes no int8 with a result in int32.
    int8_weights=True,
    is_one=starts_with(b"TFL3", at=4),
    float32=True,
)
