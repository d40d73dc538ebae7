#!/usr/bin/env bash
# Transformers: `hidden_act` of DINOv2's largest model, whose MLPs are gated.
# Guess: the activation that the model computes is the one that its settings name.
# Found (Transformers 5.23.0): with `use_swiglu_ffn=True`, `hidden_act` is kept, saved and not read: "gelu", "relu" and "silu" give one
#   network, which computes SiLU. `facebook/dinov2-giant` says "gelu". Who converts by the settings builds another network that takes
#   all weights; DINOv3's gated models do read it.
# Output: DINOv2: gelu and relu 0.0 apart / DINOv3: gelu and relu more than 0.01 apart
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q transformers==5.23.0 torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import torch
from transformers import Dinov2Config, Dinov2Model, DINOv3ViTConfig, DINOv3ViTModel

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28}
images = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(0))


def distance(model, config, **arguments):
    outputs = []
    for activation in ("gelu", "relu"):
        torch.manual_seed(0)
        network = model(config(**sizes, **arguments, hidden_act=activation)).eval()
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        with torch.no_grad():
            outputs.append(network(images).last_hidden_state)
    return (outputs[0] - outputs[1]).abs().max().item()


second = distance(Dinov2Model, Dinov2Config, use_swiglu_ffn=True)
third = distance(DINOv3ViTModel, DINOv3ViTConfig, use_gated_mlp=True, intermediate_size=64, patch_size=14)
print("DINOv2: gelu and relu", second, "apart / DINOv3:", third)
assert second == 0 and third > 0.01
EOF
