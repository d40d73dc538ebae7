#!/usr/bin/env bash
# scikit-learn: `log_loss` of the same probabilities in float64, float32 and float16.
# Guess: equal to 1e-3, rounding aside.
# Found (scikit-learn 1.9.1, numpy 2.4.6): probabilities are clipped at the epsilon of their type, .00098 for float16, although float16
#   holds numbers down to 6e-8: no image costs more than 6.93. A wrong prediction of probability 1e-5 costs 11.5 in float64 and
#   float32 and 6.9 in float16: the worse a model, the more half precision flatters it. Convert before measuring.
# Output: float64 11.51, float32 11.51, float16 6.93
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q scikit-learn==1.9.1 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import numpy as np
from sklearn.metrics import log_loss

probabilities = np.array([[1 - 1e-5, 1e-5], [1e-5, 1 - 1e-5]])
loss = {t: float(log_loss([1, 0], probabilities.astype(t))) for t in ("float64", "float32", "float16")}
print(loss, "the smallest in float16:", probabilities.astype("float16").min())
assert abs(loss["float64"] - 11.513) < 0.01 and abs(loss["float32"] - 11.513) < 0.01
assert abs(loss["float16"] - 6.93) < 0.01
EOF
