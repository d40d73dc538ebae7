"""ONNX, by PyTorch's exporter."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vitx.export.formats.torch import program_of
from keras_vitx.export.graph import HALF_DTYPES, INPUT, Format, Graph, starts_with

AXES = ("batch", "height", "width", "channels")

LOWEST = 18
"""The lowest version that PyTorch writes."""

CHANGED = ("Split", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
"""Operations with NEW_ATTRIBUTES since version 18, in which the axes became an input."""

NEW_ATTRIBUTES = ("num_outputs", "noop_with_empty_axes")


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
    if graph.opset < LOWEST:
        _lower(model, graph.opset)
    (opset,) = (each.version for each in model.opset_import if not each.domain)
    if opset != graph.opset:  # PyTorch keeps what it can't convert.
        raise ValueError(f"`opset` must be {opset} for this model. Received: {graph.opset}.")
    # Runtimes refuse newer ones than they know, whatever the operations.
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
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
    shape = graph.model.inputs[0].shape
    axes = AXES if graph.data_format == "channels_last" else (AXES[0], AXES[3], *AXES[1:3])
    names = {axis: axes[axis] for axis, side in enumerate(shape) if side is None}
    return torch.onnx.export(
        program,
        (example,),
        dynamo=True,
        input_names=[INPUT],
        output_names=list(graph.outputs),
        dynamic_shapes={INPUT: names},
        opset_version=max(graph.opset, LOWEST),
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


def _lower(model, opset: int) -> None:
    """Write operations of version 18 as of 17; neither PyTorch nor ONNX converts a `Split`."""
    from onnx import helper, numpy_helper

    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in CHANGED:
            kept = [each for each in node.attribute if each.name not in NEW_ATTRIBUTES]
            del node.attribute[:]
            node.attribute.extend(kept)
            if node.op_type != "Split" and len(node.input) > 1:
                axes = numpy_helper.to_array(constants[node.input.pop()])
                node.attribute.append(helper.make_attribute("axes", axes.tolist()))
    for each in model.opset_import:
        each.version = each.version if each.domain else opset


def check(path: Path) -> None:
    """Check that a file holds its weights itself: another beside it could be any of the user's."""
    import onnx

    def tensors(message: Any) -> Iterator[Any]:
        if isinstance(message, onnx.TensorProto):
            yield message
            return
        for field, value in message.ListFields():
            if field.message_type is not None:
                for each in [value] if hasattr(value, "ListFields") else value:
                    yield from tensors(each)

    for tensor in tensors(onnx.load(path, load_external_data=False)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            values = {entry.key: entry.value for entry in tensor.external_data}
            raise ValueError(
                f"{str(path)!r} must hold its weights itself, to be opened. Received: a file whose "
                f"{tensor.name!r} is read from {values.get('location')!r}. If it is yours, save it "
                "without external data."
            )


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
    check=check,
    float32=True,
    any_size=True,
    half_products=True,
    # ONNX Runtime 1.27 refuses the operations that unpack int4.
    quantized=("int8", "float8"),
    # Layer normalization is an operation since 17, GELU since 20.
    opsets=(17, 18, 19, 21, 22, 23, 20),
)
