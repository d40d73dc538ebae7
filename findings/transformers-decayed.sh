#!/usr/bin/env bash
# Transformers' Trainer: which parameters of a vision transformer `weight_decay=` decays.
# Guess: matrices and the kernel of the patches; LayerScale, tokens and positions are left out, as by DeiT's trainer and timm.
# Found (Transformers 5.23.0, PyTorch 2.13.0, accelerate 1.15.0): everything that is no bias and whose layer is no norm, by name: of
#   DINOv2 also LayerScale, the class token, the mask token and the positions. LayerScale is drawn towards 0, where a
#   block is off, so a decay copied from a paper's recipe does more here than there.
# Output: decayed beside matrices: cls_token, lambda1, mask_token, position_embeddings
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q transformers==5.23.0 accelerate==1.15.0 torch==2.13.0
cd "$room"
venv/bin/python -W ignore - <<'EOF'
from transformers import Dinov2Config, Dinov2ForImageClassification, Trainer, TrainingArguments

config = Dinov2Config(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8, num_labels=3
)
model = Dinov2ForImageClassification(config)
trainer = Trainer(model, TrainingArguments("run", weight_decay=0.05, use_cpu=True, report_to="none"))
optimizer = trainer.create_optimizer()
decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
names = {name for name, p in model.named_parameters() if id(p) in decayed}
others = {name.rpartition(".")[2] for name in names} - {"weight"}
print("decayed beside matrices:", *sorted(others))
assert others == {"cls_token", "lambda1", "mask_token", "position_embeddings"}
EOF
