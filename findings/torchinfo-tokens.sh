#!/usr/bin/env bash
# torchinfo: multiply-adds of a block of a vision transformer on 197 tokens.
# Guess: the Linear layers' number to 2 %, attention perhaps left out.
# Found (torchinfo 1.8.0, PyTorch 2.13.0): a Linear layer counts once per image, not once per token: 197 times too few. In a whole
#   DeiT-Ti the convolution of the patches outweighs the blocks, and the sum reads 0.03 G for 1.25 G.
# Output: torchinfo 294912, Linear layers on 197 tokens 58097664 (197.0 times)
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torchinfo==1.8.0 torch==2.13.0 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import torch
import torchinfo

mlp = torch.nn.Sequential(
    torch.nn.Linear(192, 768, bias=False), torch.nn.GELU(), torch.nn.Linear(768, 192, bias=False)
)
counted = torchinfo.summary(mlp, input_size=(1, 197, 192), verbose=0).total_mult_adds
expected = 197 * 2 * 192 * 768
print("torchinfo", counted, "Linear layers on 197 tokens", expected, expected / counted)
assert counted * 197 == expected
EOF
