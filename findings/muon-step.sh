#!/usr/bin/env bash
# Muon in PyTorch, optax and Keras: the first step of the two matrices of an MLP, learning rate 1, no decay.
# Guess: the same step in all three, up to the coefficients of the Newton-Schulz iteration.
# Found (PyTorch 2.13.0, optax 0.2.8, Keras 3.15.1): with their defaults, PyTorch and optax step with a root mean square of .108 into the wide
#   layer (64 to 256) and .053 back, Keras with .17 in both, as PyTorch does with adjust_lr_fn="match_rms_adamw". A learning rate moved
#   from one to another is 1.6 times too large or too small for the first matrix, and 3.2 times for the second.
# Output: torch .108 .054, optax .108 .054, keras .173 .171, torch match_rms_adamw .173 .171
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q torch==2.13.0 keras==3.15.1 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax KERAS_HOME="$room" "$room/venv/bin/python" - <<'EOF'
import jax.numpy as jnp
import keras
import numpy as np
import optax
import torch

random = np.random.default_rng(0)


def of_torch(gradient, **settings):
    weights = torch.nn.Parameter(torch.zeros(gradient.shape[::-1]))
    optimizer = torch.optim.Muon([weights], lr=1.0, weight_decay=0, **settings)
    weights.grad = torch.tensor(gradient.T.copy())
    optimizer.step()
    return weights.detach().numpy()


def of_keras(gradient):
    weights = keras.Variable(np.zeros_like(gradient), name="kernel")
    optimizer = keras.optimizers.Muon(learning_rate=1.0, weight_decay=0.0)
    optimizer.build([weights])
    optimizer.apply([jnp.asarray(gradient)], [weights])
    return weights.value


def of_optax(gradient):
    optimizer, weights = optax.contrib.muon(1.0), {"kernel": jnp.zeros_like(gradient)}
    return optimizer.update({"kernel": jnp.asarray(gradient)}, optimizer.init(weights), weights)[0]["kernel"]


steps = {
    "torch": of_torch,
    "optax": of_optax,
    "keras": of_keras,
    "torch match_rms_adamw": lambda gradient: of_torch(gradient, adjust_lr_fn="match_rms_adamw"),
}
wide, back = (random.standard_normal(shape).astype("float32") for shape in ((64, 256), (256, 64)))
size = {name: [float(np.sqrt(np.square(np.asarray(step(g))).mean())) for g in (wide, back)] for name, step in steps.items()}
for name, pair in size.items():
    print(name, pair)
assert np.allclose(size["torch"], [0.108, 0.0536], rtol=0.03) and np.allclose(size["optax"], size["torch"], rtol=0.03)
assert np.allclose(size["keras"], [0.173, 0.171], rtol=0.03)
assert np.allclose(size["torch match_rms_adamw"], size["keras"], rtol=0.03)
EOF
