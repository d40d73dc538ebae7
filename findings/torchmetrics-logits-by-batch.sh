#!/usr/bin/env bash
# TorchMetrics: calibration error, AUROC and average precision of logits, one batch or several.
# Guess: the same number, as `update` collects batches and `compute` sees all.
# Found (TorchMetrics 1.9.0): whether scores are logits is decided batch by batch: those with a value outside 0..1 go through a
#   softmax, the others count as probabilities. A batch whose logits happen to lie in 0..1 (a young head, one that starts at zero,
#   cosine similarities) is mixed in as it is: the calibration error is .600 instead of .253. Pass `logits.softmax(-1)`.
# Output: calibration error .2534 at once, .5995 in two batches / AUROC .4939, .4992 / average precision .1579, .1769
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import torch
from torchmetrics.classification import (
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassCalibrationError,
)

torch.manual_seed(0)
logits = torch.randn(64, 10) * 2
logits[32:] = torch.rand(32, 10)
labels = torch.randint(0, 10, (64,))
for kind in (MulticlassCalibrationError, MulticlassAUROC, MulticlassAveragePrecision):
    once, metric, soft = kind(num_classes=10), kind(num_classes=10), kind(num_classes=10)
    for batch in (slice(0, 32), slice(32, 64)):
        metric.update(logits[batch], labels[batch])
        soft.update(logits[batch].softmax(-1), labels[batch])
    once.update(logits, labels)
    values = [each.compute().item() for each in (once, metric, soft)]
    print(kind.__name__, "at once %.4f, in two batches %.4f, of the softmax %.4f" % tuple(values))
    assert abs(values[0] - values[2]) < 1e-6 and abs(values[0] - values[1]) > 0.004
EOF
