#!/usr/bin/env bash
# Transformers 5: `attention_mask` of shape (1, tokens), ones for what to attend to, in five vision transformers.
# Guess: the tokens marked 0 are hidden in all five.
# Found (Transformers 5.23.0, PyTorch 2.13.0): hidden in ViT and DINOv2. CLIP, DINOv3 and SigLIP add the mask to the scores as
#   it is, so a hidden token loses 1 against the others and is still read. Two images or more are an error there. A boolean mask
#   of shape (1, 1, tokens, tokens) hides in all five.
# Output: ViT hides True True / Dinov2 hides True True / CLIP hides False True / DINOv3 hides False True / Siglip hides False True
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q transformers==5.23.0 torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import torch
import transformers

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
images = torch.randn(1, 3, 32, 32)
changed = images.clone()
changed[:, :, -8:, -8:] += 3  # the last patch
found = {}
for name, family in {
    "ViT": "ViT",
    "Dinov2": "Dinov2",
    "CLIP": "CLIPVision",
    "DINOv3": "DINOv3ViT",
    "Siglip": "SiglipVision",
}.items():
    config = getattr(transformers, f"{family}Config")(**sizes, image_size=32, patch_size=8)
    model = getattr(transformers, f"{family}Model")(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    with torch.no_grad():
        tokens = model(images).last_hidden_state.shape[1]
        keep = torch.arange(tokens)[None] < tokens - 1

        def hides(mask):
            first, second = (model(x, attention_mask=mask).last_hidden_state[:, 0] for x in (images, changed))
            return torch.equal(first, second)

        found[name] = hides(keep.float()), hides(keep.expand(1, 1, tokens, tokens))
    print(name, "hides", *found[name])
adding = (False, True)
assert found == dict(ViT=(True, True), Dinov2=(True, True), CLIP=adding, DINOv3=adding, Siglip=adding)
EOF
