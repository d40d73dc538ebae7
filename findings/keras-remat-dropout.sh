#!/usr/bin/env bash
# Keras under PyTorch: a block with Dropout inside `RematScope("full")`.
# Guess: the gradients of the block without it, since what is computed again is the same.
# Found (Keras 3.15.1, PyTorch 2.13.0, CPU): other gradients, without a message. PyTorch's checkpoint restores PyTorch's generator, but
#   Keras draws from a seed that counts its calls: the second forward pass drops other units than the loss saw, and so does any
#   layer with a SeedGenerator. Without Dropout the gradients are equal.
# Output: largest difference of gradients: with Dropout more than .1, without Dropout 0
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q keras==3.15.1 torch==2.13.0 numpy==2.4.6
KERAS_BACKEND=torch KERAS_HOME="$room" "$room/venv/bin/python" - <<'EOF'
import contextlib

import keras
import numpy as np
import torch


class Block(keras.layers.Layer):
    def __init__(self, rate):
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(64), keras.layers.Dense(16)
        self.dropout = keras.layers.Dropout(rate, seed=1)

    def build(self, shape):
        self.inner.build(shape)
        self.outer.build((*shape[:-1], 64))

    def call(self, x, training=None):
        return x + self.outer(self.dropout(self.inner(x), training=training))


tokens = np.random.default_rng(0).standard_normal((2, 8, 16)).astype("float32")


def gradient(remat, rate):
    keras.utils.set_random_seed(0)
    with keras.RematScope("full") if remat else contextlib.nullcontext():
        block = Block(rate)
    loss = (block(torch.tensor(tokens), training=True) ** 2).sum()
    loss.backward()
    return loss.item(), block.inner.kernel.value.grad


for rate in (0.5, 0.0):
    (loss, plain), (again, remat) = gradient(False, rate), gradient(True, rate)
    difference = ((plain - remat).abs().max() / plain.abs().max()).item()
    print("rate", rate, "losses", loss, again, "gradients differ by", difference)
    assert abs(loss - again) < 1e-3 and (difference > 0.1 if rate else difference < 1e-5)
EOF
