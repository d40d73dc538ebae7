#!/usr/bin/env bash
# torchao: `quantize_(model, Int8WeightOnlyConfig())` of torchvision's vision transformer.
# Guess: every matrix of a block in int8.
# Found (torchao 0.18.0, PyTorch 2.13.0, torchvision 0.28.0): the MLPs only. `nn.MultiheadAttention` holds its queries', keys' and
#   values' matrix as a bare parameter and its output layer in a subclass of Linear, and both stay in float32, without a
#   message: a third of every block, as in open_clip's towers. timm's blocks, which have plain Linear layers, are quantized whole.
# Output: left in float32: in_proj_weight, out_proj.weight: 0.333 of the matrices of the blocks
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torchao==0.18.0 torch==2.13.0 torchvision==0.28.0
"$room/venv/bin/python" - <<'EOF'
import sys
import types

# torchvision's compiled operators, which may not fit the build of PyTorch, are not used.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("unused")
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchvision.models import VisionTransformer

model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=256).eval()
quantize_(model, Int8WeightOnlyConfig())
matrices = {name: value for name, value in model.encoder.layers.named_parameters() if value.ndim == 2}
left = {name for name, value in matrices.items() if type(value.data) is torch.Tensor}
share = sum(matrices[name].numel() for name in left) / sum(value.numel() for value in matrices.values())
print("left in float32:", sorted({name.split("self_attention.")[-1] for name in left}), f"{share:.3f}")
assert len(matrices) == 8 and len(left) == 4 and all("self_attention" in name for name in left)
assert abs(share - 1 / 3) < 1e-6
EOF
