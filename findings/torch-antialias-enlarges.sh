#!/usr/bin/env bash
# PyTorch: enlarging a table of positions with and without `antialias`.
# Guess: the same, as there is nothing to smooth when a grid becomes larger; only shrinking differs.
# Found (PyTorch 2.13.0, CPU): bilinear is the same; bicubic differs by a third of the deviation at most, since `antialias=True` is
#   another cubic, with a = -0.5 (Pillow's) in place of -0.75. Positions resized by one and the other (DINOv2's code without, timm and
#   its registers with) make two networks of one file, also from 14 x 14 to 24 x 24.
# Output: bilinear 14 -> 24: 0.000 / bicubic 14 -> 24: 0.321 / by the cubic of -0.5, -0.75: 0.000, 0.000
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(0)
table = torch.randn(1, 8, 14, 14)


def resized(mode, antialias):
    return F.interpolate(table, size=(24, 24), mode=mode, antialias=antialias)


def cubic(a):
    """The table resized by Keys's cubic, written out."""

    def weight(x):
        x = abs(x)
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0

    matrix = np.zeros((24, 14))
    for row in range(24):
        place = (row + 0.5) * 14 / 24 - 0.5
        near = range(int(np.floor(place)) - 1, int(np.floor(place)) + 3)
        if a == -0.5:  # Beyond the border there is nothing, and the rest is scaled to sum to 1.
            near = [i for i in near if 0 <= i < 14]
        for i in near:
            matrix[row, min(max(i, 0), 13)] += weight(place - i)
    matrix /= matrix.sum(1, keepdims=True)
    return torch.einsum("ri,bcij,sj->bcrs", torch.tensor(matrix), table.double(), torch.tensor(matrix))


def difference(one, other):
    return (one - other).abs().max().item()


bilinear = difference(resized("bilinear", True), resized("bilinear", False))
bicubic = difference(resized("bicubic", True), resized("bicubic", False))
fits = [difference(resized("bicubic", True), cubic(-0.5)), difference(resized("bicubic", False), cubic(-0.75))]
print(f"bilinear 14 -> 24: {bilinear:.3f} / bicubic 14 -> 24: {bicubic:.3f} / by the cubic of -0.5, -0.75: {fits[0]:.3f}, {fits[1]:.3f}")
assert bilinear < 1e-4 and bicubic > 0.3 and max(fits) < 1e-3
EOF
