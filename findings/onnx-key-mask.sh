#!/usr/bin/env bash
# ONNX opset 23: `Attention` with a mask over the keys, (batch, 1, 1, keys), as for images of different sizes in one batch.
# Guess: taken, since the mask must be broadcastable to the scores, (batch, heads, queries, keys).
# Found (ONNX Runtime 1.32.0, onnx 1.23.2): onnx's checker and its reference evaluator take it, ONNX Runtime's CPU kernel fails at
#   run time ("inconsistent q_sequence_length"). Batch and heads may be 1 there, queries may not: expand the mask before it.
# Output: reference: shape (2, 2, 4, 8) / ONNX Runtime: Fail / expanded: equal
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

onnxruntime.set_default_logger_severity(4)
random = np.random.default_rng(0)
feed = {name: random.standard_normal((2, 2, 4, 8)).astype("float32") for name in "QKV"}
keys = np.array([[True] * 4, [True, True, False, False]])[:, None, None]


def model(mask):
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 2, 4, 8)) for name in "QKV"]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, mask.shape))
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, (2, 2, 4, 8))
    node = helper.make_node("Attention", ["Q", "K", "V", "mask"], ["Y"])
    graph = helper.make_graph([node], "attention", inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(made, full_check=True)
    return made


def run(mask):
    session = onnxruntime.InferenceSession(model(mask).SerializeToString())
    return session.run(None, {**feed, "mask": mask})[0]


expected = ReferenceEvaluator(model(keys)).run(None, {**feed, "mask": keys})[0]
print("reference: shape", expected.shape)
try:
    run(keys)
    raise SystemExit("ONNX Runtime takes it")
except Fail as error:
    assert "q_sequence_length" in str(error)
    print("ONNX Runtime: Fail")
difference = np.abs(run(np.broadcast_to(keys, (2, 1, 4, 4)).copy()) - expected).max()
print("expanded:", difference)
assert difference < 1e-6
EOF
