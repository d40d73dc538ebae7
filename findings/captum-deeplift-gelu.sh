#!/usr/bin/env bash
# captum: DeepLift of a small transformer block (LayerNorm, attention, GELU).
# Guess: a warning that GELU and softmax have no rule, or attributions that add up to the difference of the outputs.
# Found (captum 0.9.0, PyTorch 2.13.0): neither. Without a rule an activation passes its plain gradient, and no message names it.
#   The attributions miss the difference by as much as the difference itself. Integrated gradients of the same network add up to
#   1e-3. With ReLU and no attention DeepLift is exact, as its paper says.
# Output: block: DeepLift misses more than .2 of the difference, integrated gradients less than .01; ReLU network: less than 1e-4
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q captum==0.9.0 torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import warnings

import torch
from captum.attr import DeepLift, IntegratedGradients

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))
        self.softmax = torch.nn.Softmax(-1)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.softmax(self.query(y) @ self.key(y).mT / 4) @ self.value(y)
        return self.head((x + self.mlp(x)).mean(1))


def missed(model, images, method):
    """The largest difference from the sum that the attributions must have, relative to it."""
    start = torch.randn_like(images)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = method(model).attribute(images, start, target=0).flatten(1).sum(1)
    assert not [w for w in caught if "GELU" in str(w.message)]
    difference = (model(images) - model(start))[:, 0]
    return ((found - difference).norm() / difference.norm()).item()


tokens = torch.randn(8, 5, 16)
relu = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(80, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
block = Block()
found = [missed(block, tokens, DeepLift), missed(block, tokens, IntegratedGradients), missed(relu, tokens, DeepLift)]
print("block, DeepLift; block, integrated gradients; ReLU network, DeepLift:", *found)
assert found[0] > 0.2 and found[1] < 0.01 and found[2] < 1e-4
EOF
