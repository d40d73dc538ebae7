"""LiteRT (TensorFlow Lite), by TensorFlow's converter."""

from pathlib import Path

from keras_vitx.export.formats.base import INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary_saved_model

PRODUCTS = {"FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D"}
"""Operations that compute in int8, in fixed ranges; all others stay in float32."""
CONVERSIONS = {"QUANTIZE", "DEQUANTIZE", "DELEGATE"}


def write(graph: Graph, path: Path) -> None:
    """Write a `.tflite` file with the signature `serving_default`."""
    import tensorflow as tf

    with temporary_saved_model(graph, path) as folder:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(folder), signature_keys=["serving_default"]
        )
        if graph.precision:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if graph.precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        static = graph.precision == "int8-static"
        path.write_bytes(_static(converter, graph.calibration) if static else converter.convert())


def _static(converter, images) -> bytes:
    """Return a file with products in int8, in ranges measured on images."""
    import tensorflow as tf
    from tensorflow.lite.python.schema_py_generated import BuiltinOperator

    def inputs():
        return (("serving_default", {INPUT: image[None]}) for image in images)

    converter.representative_dataset = inputs
    operations = {name for name in vars(BuiltinOperator) if not name.startswith("_")}
    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=sorted(operations - PRODUCTS - CONVERSIONS)
    )
    # One range per tensor does not fit the outliers of layer normalization and softmax.
    debugger = tf.lite.experimental.QuantizationDebugger(
        converter=converter, debug_dataset=inputs, debug_options=options
    )
    return debugger.get_nondebug_quantized_model()


FORMAT = Format(
    name="litert",
    title="LiteRT data",
    suffix=".tflite",
    backend="tensorflow",
    needs=("tensorflow", "ai_edge_litert"),
    extra="litert",
    write=write,
    matches=starts_with(b"TFL3", at=4),
    # Its batched product lacks int8 inputs with an int32 result.
    float32=True,
    float8=False,
    precisions=("float16", "int8", "int8-static"),
)
