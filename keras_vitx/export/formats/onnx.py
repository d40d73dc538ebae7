"""ONNX, by tf2onnx."""

import tempfile
from pathlib import Path

import numpy as np

from keras_vitx.export.formats.base import HALVES, INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.onnx_forms import shorten
from keras_vitx.export.formats.saved_model import temporary

OPSET = 18
LEAST = 1024
"""Constants of fewer values stay in float32."""

PRODUCTS = ["MatMul", "Gemm", "Conv"]
"""Operations that compute in int8; all others stay in float32."""


def write(graph: Graph, path: Path) -> None:
    """Write a `.onnx` file."""
    import onnx
    import tensorflow as tf
    import tf2onnx

    with temporary(graph) as folder:
        loaded = tf.saved_model.load(str(folder))
        served = loaded.signatures["serving_default"]
        (spec,) = served.structured_input_signature[1].values()

        def run(images):
            # In the model's order, which a signature does not keep.
            outputs = served(**{INPUT: images})
            return {name: outputs[name] for name in graph.outputs}

        function = tf.function(run, input_signature=[spec], autograph=False)
        model, _ = tf2onnx.convert.from_function(function, input_signature=[spec], opset=OPSET)
    shorten(model)
    if graph.precision in HALVES:
        _halve(model, HALVES[graph.precision])
    if graph.precision in ("int8", "int8-static"):
        model = _quantized(model, graph.calibration)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _quantized(model, calibration: np.ndarray | None):
    """Return the model with products in int8.

    Without calibration, activations are rounded in ranges found at run time, by
    `MatMulInteger`; with it, in constant ranges, by `QuantizeLinear` and `DequantizeLinear`.
    """
    import onnx
    from onnxruntime import quantization

    options = {"per_channel": True, "weight_type": quantization.QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "quantized.onnx"))
        if calibration is None:
            quantization.quantize_dynamic(model, path, op_types_to_quantize=["MatMul"], **options)
        else:
            quantization.quantize_static(
                model, path, _reader(calibration), op_types_to_quantize=PRODUCTS, **options
            )
        return onnx.load(path)


def _reader(images: np.ndarray):
    from onnxruntime.quantization import CalibrationDataReader

    class Images(CalibrationDataReader):
        def __init__(self):
            self.images = iter(images)

        def get_next(self):
            image = next(self.images, None)
            return None if image is None else {INPUT: image[None]}

    return Images()


def _halve(model, dtype) -> None:
    """Store large constants in half precision, followed by a cast, which runtimes fold."""
    import onnx
    from onnx import numpy_helper

    casts = []
    for constant in model.graph.initializer:
        values = numpy_helper.to_array(constant)
        if values.dtype != np.float32 or values.size < LEAST:
            continue
        with np.errstate(over="ignore"):
            smaller = values.astype(dtype)
        if np.isfinite(smaller.astype("float32")).all():
            name = constant.name
            constant.CopyFrom(numpy_helper.from_array(smaller, f"{name}_half"))
            to = onnx.TensorProto.FLOAT
            casts.append(onnx.helper.make_node("Cast", [constant.name], [name], to=to))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


FORMAT = Format(
    name="onnx",
    title="ONNX",
    suffix=".onnx",
    backend="tensorflow",
    needs=("tensorflow", "tf2onnx", "onnx", "onnxruntime"),
    extra="onnx",
    write=write,
    # The first field of the message, the version of the IR.
    is_one=starts_with(b"\x08"),
    float32=True,
    any_size=True,
    precisions=("float16", "bfloat16", "int8", "int8-static"),
)
