"""ONNX, by tf2onnx."""

from pathlib import Path

from keras_vitx.export.formats.base import INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.saved_model import temporary

OPSET = 18
LEAST = 1024
"""Constants of fewer values stay in float32."""


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
    if graph.half:
        _halve(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _halve(model) -> None:
    """Store large float32 constants in float16, followed by a cast, which runtimes fold."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    casts = []
    for constant in model.graph.initializer:
        values = numpy_helper.to_array(constant)
        if values.dtype != np.float32 or values.size < LEAST:
            continue
        with np.errstate(over="ignore"):
            smaller = values.astype("float16")
        if np.isfinite(smaller).all():
            name = constant.name
            constant.CopyFrom(numpy_helper.from_array(smaller, f"{name}_float16"))
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
)
