#!/usr/bin/env bash
# scikit-learn: `preprocessing.normalize` of float16 features, as a kNN or a linear probe on a network in half precision.
# Guess: computed in float32 or more, so that every row has length 1 to 1e-3.
# Found (scikit-learn 1.9.1, numpy 2.4.6): the squares are summed in float16. A feature of length above 256 has an infinite norm, and
#   the row becomes zeros, without an error; 768 features of deviation 12, 330 long, all do. `cosine_similarity` and
#   KNeighborsClassifier(metric="cosine") convert first and are right.
# Output: float16: length 0.0, float32: length 1.0, cosine_similarity of float16: 0.0 off
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q scikit-learn==1.9.1 numpy==2.4.6
"$room/venv/bin/python" -W ignore - <<'EOF'
import numpy as np
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize

features = (np.random.default_rng(0).standard_normal((50, 768)) * 12).astype("float16")


def lengths(x):
    return np.linalg.norm(normalize(x).astype("float64"), axis=1)


off = np.abs(cosine_similarity(features) - cosine_similarity(features.astype("float64"))).max()
print("float16:", lengths(features).max(), "float32:", lengths(features.astype("float32")).min(), off)
assert (lengths(features) == 0).all() and off < 1e-3
assert np.allclose(lengths(features.astype("float32")), 1, atol=1e-5)
EOF
