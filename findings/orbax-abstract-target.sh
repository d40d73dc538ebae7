#!/usr/bin/env bash
# Orbax: a checkpoint with 197 positions restored into a model of 50.
# Guess: an error that names both shapes.
# Found (orbax-checkpoint 0.12.8, jax 0.10.2): it depends on what describes the model. Arrays of JAX: an error. Shapes from
#   `jax.eval_shape`, or NumPy's arrays: the stored array comes back with its own shape, as NumPy, without a message. Shapes with
#   a sharding are checked like arrays.
# Output: eval_shape (1, 197, 8) / numpy (1, 197, 8) / jax ValueError / with a sharding ValueError
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$room"
venv/bin/python - <<'EOF'
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

checkpointer = ocp.StandardCheckpointer()
path = Path("saved").absolute()
checkpointer.save(path, {"positions": np.ones((1, 197, 8), "float32")})
checkpointer.wait_until_finished()


def restored(target):
    try:
        return checkpointer.restore(path, {"positions": target})["positions"].shape
    except ValueError:
        return ValueError


place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
found = {
    "eval_shape": restored(jax.eval_shape(lambda: jnp.zeros((1, 50, 8)))),
    "numpy": restored(np.zeros((1, 50, 8), "float32")),
    "jax": restored(jnp.zeros((1, 50, 8))),
    "with a sharding": restored(jax.ShapeDtypeStruct((1, 50, 8), "float32", sharding=place)),
}
print(found)
assert list(found.values()) == [(1, 197, 8), (1, 197, 8), ValueError, ValueError]
EOF
