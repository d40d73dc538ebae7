"""ONNX, by PyTorch's exporter."""

import logging
import math
import tempfile
import warnings
from pathlib import Path

import numpy as np

from keras_vitx.export.formats.base import HALF_DTYPES, INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.torch import program_of

OPSET = 20
"""The first with GELU."""

MINIMUM = 1024
"""Constants of fewer values stay in float32."""

PRODUCTS = ["MatMul", "Gemm", "Conv"]
"""Operations that compute in int8; all others stay in float32."""


def write(graph: Graph, path: Path) -> None:
    """Write a `.onnx` file."""
    import onnx
    import torch

    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = _exported(graph, decompose=False)
        except torch.onnx.OnnxExporterError:
            exported = _exported(graph, decompose=True)
    _simplify(exported.model)
    model = exported.model_proto
    if graph.compute_dtype:
        _halve_norms(model, HALF_DTYPES[graph.compute_dtype])
    elif graph.precision in HALF_DTYPES:
        _halve(model, HALF_DTYPES[graph.precision])
    if graph.precision in ("int8", "int8-static"):
        model = _quantized(model, graph.calibration)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _exported(graph: Graph, decompose: bool):
    """Export by PyTorch; decomposing traces again, but is needed for operations that ONNX lacks."""
    import torch

    program, example = program_of(graph, in_half=bool(graph.compute_dtype))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    # Operations in place have to be decomposed.
    if not decompose and not any("_." in str(node.target) for node in nodes):
        aten = torch.ops.aten
        for node in nodes:
            # ONNX lacks the first; the second would become an Einsum.
            if node.target is aten.numpy_T.default:
                node.target = aten.t.default
            elif node.target is aten.mT.default:
                node.target, node.args = aten.transpose.int, (*node.args, -2, -1)
        program.run_decompositions = lambda table: program
    return torch.onnx.export(
        program,
        (example,),
        dynamo=True,
        input_names=[INPUT],
        output_names=list(graph.outputs),
        opset_version=OPSET,
        verbose=False,
        optimize=False,
    )


def _simplify(model) -> None:
    """Fold constants and remove what is unused or duplicate; runtimes fuse patterns themselves."""
    from onnx_ir.passes import Sequential, common
    from onnxscript import optimizer

    optimizer.fold_constants(model, should_fold=lambda node: node.op_type == "Transpose" or None)
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
    )(model)


def _quantized(model, calibration: np.ndarray | None):
    """Return the model in int8, with activations in ranges found at run time or by calibration."""
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

    casts = []
    for constant in model.graph.initializer:
        name = constant.name
        if math.prod(constant.dims) >= MINIMUM and _round(constant, dtype, f"{name}_half"):
            to = onnx.TensorProto.FLOAT
            casts.append(onnx.helper.make_node("Cast", [constant.name], [name], to=to))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _halve_norms(model, dtype) -> None:
    """Round the scales and shifts of layer normalizations: in ONNX they have their input's type."""
    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            for name in node.input[1:]:
                _round(constants[name], dtype, name)


def _round(constant, dtype, name) -> bool:
    """Round a float32 constant and rename it, if the dtype can hold it; return whether it can."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(constant)
    if values.dtype != np.float32:
        return False
    with np.errstate(over="ignore"):
        smaller = values.astype(dtype)
    if not np.isfinite(smaller.astype("float32")).all():
        return False
    constant.CopyFrom(numpy_helper.from_array(smaller, name))
    return True


FORMAT = Format(
    name="onnx",
    title="ONNX data",
    suffix=".onnx",
    backend="torch",
    needs=("torch", "onnxscript", "onnx", "onnxruntime"),
    extra="onnx",
    write=write,
    # The first field of the message, the version of the IR.
    is_one=starts_with(b"\x08"),
    float32=True,
    int8_weights=True,
    any_size=True,
    precisions=("float16", "bfloat16", "int8", "int8-static"),
    computes=("float16", "bfloat16"),
)
