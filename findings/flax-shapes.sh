#!/usr/bin/env bash
# Flax: the parameters of a classifier of 1,000 classes and 197 positions into a model of 10 classes and 50 positions.
# Guess: an error that names the shapes.
# Found (flax 0.12.8, jax 0.10.2): `nnx.update` and `serialization.from_bytes` look at names only and give the target the file's
#   shapes. The model of 10 classes answers with 1,000 logits, and the positions are the old grid's.
# Output: nnx.update: head (8, 1000), positions (1, 197, 8), logits (2, 1000) / from_bytes: (8, 1000)
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$room/venv/bin/python" - <<'EOF'
import jax.numpy as jnp
import numpy as np
from flax import nnx, serialization


class Classifier(nnx.Module):
    def __init__(self, positions, classes):
        self.positions = nnx.Param(jnp.zeros((1, positions, 8)))
        self.head = nnx.Linear(8, classes, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        return self.head((tokens + self.positions[:, :1]).mean(1))


released, mine = Classifier(197, 1000), Classifier(50, 10)
nnx.update(mine, nnx.state(released))
logits = mine(jnp.ones((2, 50, 8)))
print("nnx.update:", mine.head.kernel.shape, mine.positions.shape, logits.shape)
assert mine.positions.shape == (1, 197, 8) and logits.shape == (2, 1000)
written = serialization.to_bytes({"head": np.ones((8, 1000), "float32")})
read = serialization.from_bytes({"head": np.zeros((8, 10), "float32")}, written)
print("from_bytes:", read["head"].shape)
assert read["head"].shape == (8, 1000)
EOF
