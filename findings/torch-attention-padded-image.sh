#!/usr/bin/env bash
# PyTorch: `nn.MultiheadAttention` of a batch with one sample that is padding from end to end.
# Guess: the same in training and evaluation (NaN).
# Found (PyTorch 2.13.0, CPU): zeros in training, NaN in evaluation, whose fast path is another program; NaN in both if the
#   weights are asked for. A network validates as NaN that trained without one. `torch.backends.mha.set_fastpath_enabled(False)`
#   gives zeros in both.
# Output: training: zeros / evaluation: NaN / training with weights: NaN / evaluation without the fast path: zeros
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import torch

attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
tokens = torch.randn(2, 4, 16)
padding = torch.tensor([[False] * 4, [True] * 4])


def outcome(training, weights=False):
    attention.train(training)
    with torch.set_grad_enabled(training):
        out, _ = attention(tokens, tokens, tokens, key_padding_mask=padding, need_weights=weights)
    assert out[0].isfinite().all()
    return "NaN" if out[1].isnan().all() else "zeros" if (out[1] == 0).all() else "other"


found = [outcome(True), outcome(False), outcome(True, weights=True)]
torch.backends.mha.set_fastpath_enabled(False)
found.append(outcome(False))
print(*found)
assert found == ["zeros", "NaN", "NaN", "zeros"]
EOF
