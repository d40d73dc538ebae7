#!/usr/bin/env bash
# PyTorch: AdamW on bfloat16 weights, one large gradient, then small ones.
# Guess: the second moment falls again, somewhat more slowly than in float32.
# Found (PyTorch 2.13.0, CPU; plain, foreach and fused): it never falls. A product with .999 rounds back to the same bfloat16
#   number, so the largest gradient of a run limits the step for ever. After a gradient of 1 and 3,000 of 1e-3, float32 has
#   5.1e-5 left, bfloat16 the whole 1.0e-3. Moments in float32 (weights in float32 under autocast) are the way out, or a
#   second decay of .99 or less.
# Output: float32 5.1e-05, bfloat16 1.0e-03 three times, bfloat16 with .99: 1.0e-05 or less
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0
"$room/venv/bin/python" - <<'EOF'
import torch


def second_moment(dtype, beta=0.999, **form):
    weights = torch.nn.Parameter(torch.zeros(16, dtype=dtype))
    optimizer = torch.optim.AdamW([weights], betas=(0.9, beta), **form)
    for step in range(3001):
        weights.grad = torch.full_like(weights, 1.0 if step == 0 else 1e-3)
        optimizer.step()
        if step == 0:
            first = optimizer.state[weights]["exp_avg_sq"][0].item()
    return first, optimizer.state[weights]["exp_avg_sq"][0].item()


first, last = second_moment(torch.float32)
print("float32", first, last)
assert last < 0.06 * first
for form in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    first, last = second_moment(torch.bfloat16, **form)
    print("bfloat16", form, first, last)
    assert last == first
first, last = second_moment(torch.bfloat16, beta=0.99)
print("bfloat16, second decay .99:", first, last)
assert last < 0.06 * first
EOF
