#!/usr/bin/env bash
# onnx's reference evaluator as the judge of a float16 file: LayerNormalization and RMSNormalization.
# Guess: right to 1e-3, because `stash_type`, by default 1, says that the statistics are in float32.
# Found (onnx 1.23.2, ONNX Runtime 1.32.0): the evaluator computes the statistics in float16. Tokens of 1,000 and more, the massive
#   activations of trained vision transformers, give zeros, NaN or numbers that are off by more than 1; ONNX Runtime is right.
# Output: LayerNormalization: reference NaN, ONNX Runtime off by .001 / RMSNormalization: reference off by 2 to 4, ONNX Runtime by .002
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$room/venv/bin/python" -W ignore - <<'EOF'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

tokens = (np.random.default_rng(0).standard_normal((2, 768)) * 100 + 1000).astype("float16")
wide = tokens.astype("float64")
centred = wide - wide.mean(-1, keepdims=True)
expected = {
    "LayerNormalization": centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6),
    "RMSNormalization": wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6),
}
off = {}
for operator, value in expected.items():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, tokens.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, tokens.shape)
    scale = helper.make_tensor("scale", TensorProto.FLOAT16, [768], np.ones(768, "float16"))
    node = helper.make_node(operator, ["x", "scale"], ["y"], axis=-1, epsilon=1e-6)
    graph = helper.make_graph([node], "norm", [x], [y], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    runs = ReferenceEvaluator(model).run(None, {"x": tokens})[0], session.run(None, {"x": tokens})[0]
    off[operator] = [np.abs(run - value).max() for run in runs]
    print(operator, "reference, ONNX Runtime:", *off[operator])
assert all(not reference < 0.5 and runtime < 0.01 for reference, runtime in off.values())
EOF
