#!/usr/bin/env bash
# Transformers 5: `head_mask=` of a vision transformer, the way to switch heads off in version 4.
# Guess: a TypeError, since version 5 has no such argument.
# Found (Transformers 5.23.0, PyTorch 2.13.0): accepted and without effect, like any other keyword, a misspelled one included:
#   a mask of zeros for every head changes no logit. A study that prunes heads measures the whole network each time.
# Output: head_mask: 0.0 / interpolate_pos_enc: 0.0 / anything: 0.0
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q transformers==5.23.0 torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import torch
from transformers import DeiTConfig, DeiTForImageClassification, ViTConfig, ViTForImageClassification

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
images = torch.randn(2, 3, 32, 32)
for config, classifier in ((ViTConfig, ViTForImageClassification), (DeiTConfig, DeiTForImageClassification)):
    model = classifier(config(**sizes, image_size=32, patch_size=8)).eval()
    with torch.no_grad():
        logits = model(images).logits
        for keyword in ({"head_mask": torch.zeros(2, 2)}, {"interpolate_pos_enc": True}, {"anything": 1}):
            change = (model(images, **keyword).logits - logits).abs().max().item()
            print(*keyword, change)
            assert change == 0
EOF
