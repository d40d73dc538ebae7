#!/usr/bin/env bash
# JAX: what a small draw of random numbers costs when a program is compiled for a CPU.
# Guess: next to nothing: eight numbers are a few operations.
# Found (JAX 0.10.2, CPU): each draw is a loop of its own, with the bodies of threefry inside, which XLA compiles again.
#   48 draws of 8 numbers, as the masks of stochastic depth of 24 blocks, are 48 loops and take several times as long to
#   compile as one draw over the 48 keys by `jax.vmap`, whose numbers are the same. In a step of CaiT-XXS24 they were 2 of 8 s.
# Output: loops: [48, 1] / equal numbers: True / compile time: 4.46 and 0.33 s
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q jax==0.10.2
JAX_PLATFORMS=cpu "$room/venv/bin/python" - <<'EOF'
import time

import jax
import jax.numpy as jnp
import numpy as np

keys = jnp.stack([jnp.array([7, i], "uint32") for i in range(48)])


def draw(key):
    return jax.random.uniform(key, (8,))


def one_by_one(keys):
    return jnp.stack([draw(key) for key in keys])


def compiled(function):
    lowered = jax.jit(function).lower(keys)
    start = time.process_time()
    program = lowered.compile()
    return time.process_time() - start, program


compiled(jax.vmap(draw))  # What the first compilation loads is not counted.
many, single = compiled(one_by_one), compiled(jax.vmap(lambda key: draw(key)))
loops = [program.as_text().count(" while(") for _, program in (many, single)]
equal = np.array_equal(many[1](keys), single[1](keys))
print("loops:", loops, "equal numbers:", equal, f"compile time: {many[0]:.2f} and {single[0]:.2f} s")
assert loops == [48, 1] and equal
assert many[0] > 3 * single[0]
EOF
