"""ONNX, by PyTorch's exporter."""

import logging
import warnings
from pathlib import Path

from keras_vitx.export.formats.base import HALF_DTYPES, INPUT, Format, Graph, starts_with
from keras_vitx.export.formats.torch import program_of

OPSET = 20
"""The first with GELU."""


def write(graph: Graph, path: Path) -> None:
    """Write a `.onnx` file."""
    import onnx
    import torch

    # It warns about torchvision, which the model does not need.
    for name in ("onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = _export(graph, decompose=False)
        except torch.onnx.OnnxExporterError:
            program = _export(graph, decompose=True)
    _simplify(program.model)
    model = program.model_proto
    if graph.compute_dtype:
        _halve_norms(model, HALF_DTYPES[graph.compute_dtype])
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _export(graph: Graph, decompose: bool):
    """Export by PyTorch. Decomposing, for operations that ONNX lacks, traces again."""
    import torch

    program, example = program_of(graph)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    # In-place operations must be decomposed.
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


def _halve_norms(model, dtype) -> None:
    """Round the scales and shifts of layer normalizations: ONNX requires their input's dtype."""
    from onnx import numpy_helper

    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            for name in node.input[1:]:
                values = numpy_helper.to_array(constants[name]).astype(dtype)
                constants[name].CopyFrom(numpy_helper.from_array(values, name))


FORMAT = Format(
    name="onnx",
    title="ONNX data",
    suffix=".onnx",
    backend="torch",
    needs=("torch", "onnxscript", "onnx", "onnxruntime"),
    extra="onnx",
    write=write,
    # The first field of the message is the IR version.
    matches=starts_with(b"\x08"),
    float32=True,
    any_size=True,
    half_products=True,
    # ONNX Runtime 1.27 refuses the operations that unpack int4.
    quantized=("int8", "float8"),
)
