"""ONNX, by PyTorch's exporter."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import keras

from keras_vitx.export.formats.torch import AXES, program_of

OPSET = 20
"""The first version in which GELU is one operation; layer normalization is since 17."""


def write(model: keras.Model, names: Sequence[str], path: Path) -> None:
    """Write a `.onnx` file."""
    import onnx
    import torch

    # It warns about torchvision, which the model does not need.
    for name in ("onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = _export(model, names, decompose=False)
        except torch.onnx.OnnxExporterError:
            program = _export(model, names, decompose=True)
    _simplify(program.model)
    proto = program.model_proto
    # Runtimes refuse newer ones than they know, whatever the operations.
    proto.ir_version = onnx.helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
    onnx.save(proto, path)


def _export(model: keras.Model, names: Sequence[str], decompose: bool):
    """Export by PyTorch.

    Decomposing, for operations that ONNX lacks, traces again: 67 instead of 31 s for CaiT_XXS24.
    """
    import torch

    program, example = program_of(model, names)
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
    sides = enumerate(model.inputs[0].shape)
    return torch.onnx.export(
        program,
        (example,),
        dynamo=True,
        input_names=["images"],
        output_names=list(names),
        dynamic_shapes={"images": {axis: AXES[axis] for axis, side in sides if side is None}},
        opset_version=OPSET,
        verbose=False,
        optimize=False,
    )


def _simplify(model) -> None:
    """Fold constants and remove what is unused or duplicate; runtimes fuse patterns themselves."""
    from onnx_ir.passes import Sequential, common
    from onnxscript import optimizer

    def should_fold(node):
        return node.op_type == "Transpose" or None

    # With the types of all values, also casts to the type that is there.
    optimizer.fold_constants(model, should_fold=should_fold, onnx_shape_inference=True)
    Sequential(
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
    )(model)
