#!/usr/bin/env bash
# PEFT: LoRA with target_modules="all-linear" on torchvision's vision transformer.
# Guess: the adapters of a block act on its attention and its MLP.
# Found (PEFT 0.21.2, PyTorch 2.13.0, torchvision 0.28.0): on the MLP only. `nn.MultiheadAttention` reads the weights of its output layer
#   without calling it: that layer's adapters count as trainable parameters and are saved, but have neither effect nor
#   gradient, without a message, and queries, keys and values get none. target_modules=["self_attention"] adapts all of it.
# Output: all-linear: acting mlp.0, mlp.3 and the head, idle self_attention.out_proj / ["self_attention"]: none idle
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q peft==0.21.2 transformers==5.23.0 accelerate==1.15.0 torch==2.13.0 torchvision==0.28.0
"$room/venv/bin/python" -W ignore - <<'EOF'
import sys
import types

# torchvision's compiled operators, which may not fit the build of PyTorch, are not used.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("unused")
import torch
from peft import LoraConfig, get_peft_model
from torchvision.models import VisionTransformer

images = torch.randn(2, 3, 32, 32)


def adapters(targets):
    """The layers whose adapters have a gradient, and those whose adapters have none."""
    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=128)
    torch.nn.init.normal_(model.heads[0].weight)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    model(images).sum().backward()
    found = set(), set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            reached = parameter.grad is not None and bool(parameter.grad.any())
            found[not reached].add(name.partition(".lora_")[0].rpartition("layer_1.")[2])
    return tuple({name for name in names if "layer_0" not in name} for names in found)


acting, idle = adapters("all-linear")
print("all-linear: acting", sorted(acting), "idle", sorted(idle))
assert idle == {"self_attention.out_proj"} and {"mlp.0", "mlp.3"} < acting
assert not any("self_attention" in name for name in acting)
acting, idle = adapters(["self_attention"])
print("self_attention: acting", sorted(acting), "idle", sorted(idle))
assert acting and not idle
EOF
