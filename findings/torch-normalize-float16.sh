#!/usr/bin/env bash
# PyTorch: `F.normalize` and `F.cosine_similarity` of a zero vector in float16.
# Guess: zeros as in float32, because `eps` is there for it.
# Found (PyTorch 2.13.0, CPU): NaN. The defaults, 1e-12 and 1e-8, are rounded to float16, where they are 0. bfloat16 has the
#   range of float32 and gives zeros. A padded token of a normalized query, or an empty feature in a kNN protocol, becomes NaN.
# Output: float32 [0.0, 0.0] / bfloat16 [0.0, 0.0] / float16 [nan, nan] / float16, eps=1e-6: [0.0, 0.0]
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import math

import torch
import torch.nn.functional as F

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    zero, other = torch.zeros(1, 4, dtype=dtype), torch.ones(1, 4, dtype=dtype)
    found = [F.normalize(zero)[0, 0].item(), F.cosine_similarity(zero, other).item()]
    print(dtype, found)
    assert [math.isnan(x) for x in found] == [dtype == torch.float16] * 2
safe = [F.normalize(zero, eps=1e-6)[0, 0].item(), F.cosine_similarity(zero, other, eps=1e-6).item()]
print("float16, eps=1e-6:", safe)
assert safe == [0, 0]
EOF
