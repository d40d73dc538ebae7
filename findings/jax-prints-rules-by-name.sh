#!/usr/bin/env bash
# JAX: whether the printed form of a traced function tells two rules for the derivative apart.
# Guess: it does: it prints constants, parameters and inner functions, so functions with other gradients print otherwise.
# Found (JAX 0.10.2): of `jax.custom_vjp` and `jax.custom_jvp` it prints the names of the rules only. Two layers that scale
#   the gradient by 2 and by 3 in rules of the same name print alike; who compares or caches programs by their text takes one
#   gradient for the other. Arrays that a function closes over do not print, either: they are arguments before the semicolon.
# Output: alike: True / gradients: 2.0 3.0 / with other constants, alike: True
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q jax==0.10.2
JAX_PLATFORMS=cpu "$room/venv/bin/python" - <<'EOF'
import jax
import numpy as np


def scaling(factor):
    @jax.custom_vjp
    def scale(x):
        return x * 1.0

    scale.defvjp(lambda x: (scale(x), None), lambda _, change: (change * factor,))
    return scale


def shifted(values):
    return lambda x: x + values


two, three = scaling(2.0), scaling(3.0)
alike = str(jax.make_jaxpr(two)(1.0)) == str(jax.make_jaxpr(three)(1.0))
gradients = float(jax.grad(two)(1.0)), float(jax.grad(three)(1.0))
one, other = (shifted(np.full(3, value, "float32")) for value in (1, 2))
constants = str(jax.make_jaxpr(one)(np.zeros(3))) == str(jax.make_jaxpr(other)(np.zeros(3)))
print("alike:", alike, "gradients:", *gradients, "with other constants, alike:", constants)
assert alike and constants
assert gradients == (2.0, 3.0)
EOF
