#!/usr/bin/env bash
# JAX: what `jax.checkpoint` with a policy does with the products that it saves, on a CPU.
# Guess: nothing. They are outputs of the forward pass, and the backward pass reads them.
# Found (JAX 0.10.2, CPU): JAX rounds each saved product by `reduce_precision` to the precision of its dtype, against
#   optimizations in higher precision (jax-ml/jax#22244). In float32 this changes nothing, and yet XLA keeps it: an operation
#   of its own, which reads and writes every saved product once more. 3 products of 3 layers are 3 such operations or more;
#   without a policy there are none. In a ViT, that is each product with a weight.
# Output: no checkpoint 0 / nothing saved 0 / products saved 6
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q jax==0.10.2
JAX_PLATFORMS=cpu "$room/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp


def layer(x, weight):
    return x + jnp.tanh(x @ weight)


def count(layer):
    def loss(weights, x):
        for weight in weights:
            x = layer(x, weight)
        return (x**2).sum()

    weights, x = [jnp.full((64, 64), 0.01)] * 3, jnp.ones((8, 64))
    compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile()
    return compiled.as_text().count(" reduce-precision(")


policies = jax.checkpoint_policies
found = {
    "no checkpoint": count(layer),
    "nothing saved": count(jax.checkpoint(layer, policy=policies.nothing_saveable)),
    "products saved": count(jax.checkpoint(layer, policy=policies.dots_saveable)),
}
print(found)
assert found["no checkpoint"] == found["nothing saved"] == 0
assert found["products saved"] >= 3
EOF
