"""A training that was killed ends as if it had not been, bit for bit."""

import signal

import keras
import numpy as np
import pytest
from harness import BACKEND, ROOT, run_python
from training.fitting import SHORT, TRAIN, VALIDATION, WORSE, small
from training.kill_trial import EPOCHS, results, train

import keras_vitx as kv
from keras_vitx.training import Restart

LIFE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import keras
from training.kill_trial import train

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch == int(sys.argv[3])
        if self.now and sys.argv[4] == "write":
            os.replace = kill

    def on_train_batch_end(self, batch, logs=None):
        if self.now and batch == 2:
            kill()

from pathlib import Path
train(Path(sys.argv[2]), "mixed_float16", [Kill()], seed=int(sys.argv[3]) // 2)
"""


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    """Killed in a step, before any epoch was finished, and while the next file is written."""
    whole = train(tmp_path / "whole", "mixed_float16")
    # What is in the file is the backend's, when it is written is not.
    lives = ((0, "step"), (1, "write")) if BACKEND == "torch" else ((1, "write"),)
    for epoch, moment in lives:
        died = run_python(LIFE, ROOT / "tests", tmp_path / "parts", epoch, moment, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr
    # Nothing may depend on the weights with which the last life begins.
    parts = train(tmp_path / "parts", "mixed_float16", seed=9)
    for one, other in zip(*(results(tmp_path / name) for name in ("whole", "parts")), strict=True):
        np.testing.assert_array_equal(one, other)
    assert parts.history == whole.history and parts.epoch == [*range(EPOCHS)]


@pytest.mark.backend_free
def test_a_finished_run_is_loaded_or_extended(tmp_path):
    settings = {**SHORT, "output": tmp_path, "resume": True}
    one, other = small(), small()
    first = kv.fit(one, (TRAIN, VALIDATION), **settings)
    again = kv.fit(other, (TRAIN, VALIDATION), **settings)
    assert again.history == first.history
    np.testing.assert_array_equal(one.get_weights()[0], other.get_weights()[0])
    assert kv.fit(small(), (TRAIN, VALIDATION), **settings | {"epochs": 4}).epoch == [0, 1, 2, 3]


@pytest.mark.backend_free
def test_a_run_that_ended_early_does_not_go_on(tmp_path):
    settings = {**SHORT, "epochs": 20, "patience": 2, "output": tmp_path, "resume": True}
    first, again = (kv.fit(small(), WORSE, **settings).epoch for _ in range(2))
    assert again == first and len(first) < 20


@pytest.mark.backend_free
def test_plain_keras_restarts_with_callbacks_that_have_a_state(tmp_path):
    class Count(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1

        def get_state(self):
            return {"steps": np.array(self.steps)}

        def set_state(self, state):
            self.steps = int(state["steps"])

    for epochs in (2, 3):
        keras.utils.set_random_seed(epochs)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        restart = Restart(tmp_path / "restart.safetensors", [count := Count()])
        data = np.ones((12, 2)), np.ones((12, 1))
        begin = {"epochs": epochs, "initial_epoch": restart.initial_epoch}
        history = model.fit(*data, 4, callbacks=[count, restart], verbose=0, **begin)
    assert history.epoch == [0, 1, 2] and count.steps == int(model.optimizer.iterations) == 9
