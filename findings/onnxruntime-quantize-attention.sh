#!/usr/bin/env bash
# ONNX Runtime: `quantize_dynamic` of a block that PyTorch exports with opset 23, where attention is one operator.
# Guess: the products with weights become int8, the operator `Attention` stays.
# Found (ONNX Runtime 1.32.0, PyTorch 2.13.0, onnxscript 0.7.2): the function takes ONNX's `Attention` for Microsoft's operator of the
#   same name and writes `QAttention` without its weights. It returns without a message; the file does not load ("invalid
#   model"). With opset 20 it works, and with `op_types_to_quantize=["MatMul"]`.
# Output: opset 20 runs / opset 23: INVALID_GRAPH / opset 23, MatMul only: runs
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q onnxruntime==1.32.0 onnx==1.23.2 onnxscript==0.7.2 torch==2.13.0 numpy==2.4.6
cd "$room"
venv/bin/python -W ignore - <<'EOF'
import onnxruntime
import torch
import torch.nn.functional as F
from onnxruntime.quantization import quantize_dynamic


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, tokens):
        shape = (*tokens.shape[:2], 3, 2, 32)
        query, key, value = self.qkv(tokens).reshape(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


tokens = torch.randn(2, 17, 64)


def outcome(opset, **settings):
    torch.onnx.export(Attention().eval(), (tokens,), "a.onnx", dynamo=True, opset_version=opset, verbose=False)
    quantize_dynamic("a.onnx", "q.onnx", **settings)
    try:
        session = onnxruntime.InferenceSession("q.onnx")
    except Exception as error:
        assert "QAttention" in str(error), error
        return type(error).__name__
    session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    return "runs"


found = [outcome(20), outcome(23), outcome(23, op_types_to_quantize=["MatMul"])]
print(*found)
assert found == ["runs", "InvalidGraph", "runs"]
EOF
