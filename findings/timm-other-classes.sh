#!/usr/bin/env bash
# timm: a weights file without the last block, loaded into a classifier of another number of classes.
# Guess: a warning that names the tensors that the file lacks.
# Found (timm 1.0.31, PyTorch 2.13.0): another number of classes makes the loading lenient for every tensor. Nothing is
#   printed or logged, and the block keeps its random weights. With the file's own number of classes it is an error.
# Output: 5 classes: [True, False] messages: 0 / 1000 classes: RuntimeError
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q timm==1.0.31 torch==2.13.0 torchvision==0.28.0 safetensors==0.8.0
cd "$room"
venv/bin/python - <<'EOF'
import logging
import sys
import types
import warnings

# torchvision's compiled operators, which may not fit the build of PyTorch, are not used.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("unused")
import timm
import torch
from safetensors.torch import save_file

messages = []


class Collect(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())


logging.getLogger().addHandler(Collect(logging.WARNING))
small = {"img_size": 64, "depth": 2}
source = timm.create_model("vit_tiny_patch16_224", **small)
kept = {name: value for name, value in source.state_dict().items() if "blocks.1." not in name}
save_file(kept, "cut.safetensors")


def load(classes):
    file = {"file": "cut.safetensors"}
    return timm.create_model(
        "vit_tiny_patch16_224", pretrained=True, num_classes=classes, pretrained_cfg_overlay=file, **small
    )


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = load(5)
weights = [(model.blocks[i].mlp.fc1.weight, source.blocks[i].mlp.fc1.weight) for i in (0, 1)]
same = [torch.equal(*pair) for pair in weights]
messages += [str(w.message) for w in caught if "blocks.1" in str(w.message)]
print("5 classes:", same, "messages:", len(messages))
assert same == [True, False] and not messages, messages
try:
    load(1000)
    raise SystemExit("1000 classes: loaded")
except RuntimeError as error:
    assert "blocks.1.norm1.weight" in str(error)
    print("1000 classes: RuntimeError")
EOF
