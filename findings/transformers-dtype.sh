#!/usr/bin/env bash
# Transformers 5: a file whose tensors have two types, and a configuration that names none.
# Guess: each tensor keeps its type, or all get the wider one.
# Found (Transformers 5.23.0, PyTorch 2.13.0, safetensors 0.8.0): the whole model gets the type of the tensor whose name sorts
#   first. Of a ViT classifier that is `classifier.bias`: a bfloat16 head on a float32 backbone rounds the backbone to bfloat16,
#   and a float32 head on a bfloat16 backbone makes a float32 model. Version 4 made float32 of both. Name it: `dtype="float32"`.
# Output: head in bfloat16, the rest in float32: {torch.bfloat16} / the reverse: {torch.float32}
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q transformers==5.23.0 torch==2.13.0 safetensors==0.8.0
cd "$room"
venv/bin/python - <<'EOF'
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained("vit")
config = json.loads(Path("vit/config.json").read_text())
del config["dtype"]
Path("vit/config.json").write_text(json.dumps(config))
tensors = load_file("vit/model.safetensors")


def types_of(head, rest):
    mixed = {name: value.to(head if "classifier" in name else rest) for name, value in tensors.items()}
    save_file(mixed, "vit/model.safetensors", metadata={"format": "pt"})
    return {p.dtype for p in ViTForImageClassification.from_pretrained("vit").parameters()}


narrow = types_of(torch.bfloat16, torch.float32)
wide = types_of(torch.float32, torch.bfloat16)
print("head in bfloat16, the rest in float32:", narrow, "/ the reverse:", wide)
assert narrow == {torch.bfloat16} and wide == {torch.float32}
EOF
