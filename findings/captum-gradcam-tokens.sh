#!/usr/bin/env bash
# captum and pytorch-grad-cam: class activation maps of a layer whose output is tokens, (batch, tokens, width).
# Guess: an error, since both want (batch, channels, height, width).
# Found (captum 0.9.0, grad-cam 1.5.7, PyTorch 2.13.0): captum's LayerGradCam takes tokens for channels and gives one number for each of
#   the 64 features, (2, 1, 64), which its own `interpolate` makes an image of. Of pytorch-grad-cam, GradCAM raises an error, while
#   EigenCAM and LayerCAM draw a heat map of the plane of tokens and features. Both need the tokens as a grid (`reshape_transform`).
# Output: LayerGradCam (2, 1, 64) / GradCAM ValueError / EigenCAM (2, 32, 32) / LayerCAM (2, 32, 32)
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q setuptools wheel
"$room/venv/bin/pip" install -q captum==0.9.0 grad-cam==1.5.7 torch==2.13.0 torchvision==0.28.0 numpy==2.4.6
"$room/venv/bin/python" -W ignore - <<'EOF'
import sys
import types

# torchvision's compiled operators, which may not fit the build of PyTorch, are not used.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("unused")
import torch
from captum.attr import LayerGradCam
from pytorch_grad_cam import EigenCAM, GradCAM, LayerCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torchvision.models import VisionTransformer

model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=128).eval()
torch.nn.init.normal_(model.heads[0].weight)
layer, images = model.encoder.layers[-1].ln_1, torch.randn(2, 3, 32, 32)
shape = tuple(LayerGradCam(model, layer).attribute(images, target=1).shape)
print("LayerGradCam", shape)
assert shape == (2, 1, 64)
found = {}
for method in (GradCAM, EigenCAM, LayerCAM):
    try:
        found[method] = method(model, [layer])(images, [ClassifierOutputTarget(1)] * 2).shape
    except ValueError:
        found[method] = ValueError
    print(method.__name__, found[method])
assert list(found.values()) == [ValueError, (2, 32, 32), (2, 32, 32)]
EOF
