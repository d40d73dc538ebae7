"""LiteRT (TensorFlow Lite), by TensorFlow's converter."""

from pathlib import Path

from keras_vitx.export.formats.base import INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary


def write(graph: Graph, path: Path) -> None:
    """Write a `.tflite` file with the signature `serving_default`."""
    import tensorflow as tf

    with temporary(Graph(graph.model, graph.outputs)) as folder:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(folder), signature_keys=["serving_default"]
        )
        if graph.precision:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if graph.precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if graph.precision == "int8-static":
            converter.representative_dataset = lambda: (
                ("serving_default", {INPUT: graph.calibration[index : index + 1]})
                for index in range(len(graph.calibration))
            )
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
    precisions=("float16", "int8", "int8-static"),
)
