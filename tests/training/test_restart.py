"""A training that was killed ends as if it had not been, bit for bit."""

import signal

import keras
import numpy as np
import pytest
from harness import ROOT, run_python
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
        if epoch == 1:
            os.replace = kill

from pathlib import Path
train(Path(sys.argv[2]), "mixed_float16", [Kill()])
"""


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    """Killed while the file of the second epoch is written."""
    whole = train(tmp_path / "whole", "mixed_float16")
    died = run_python(LIFE, ROOT / "tests", tmp_path / "parts", check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert list((tmp_path / "parts").glob(".unfinished-*"))
    # Nothing may depend on the weights with which the last life begins.
    parts = train(tmp_path / "parts", "mixed_float16", seed=9)
    np.testing.assert_equal(results(tmp_path / "parts"), results(tmp_path / "whole"))
    assert parts.history == whole.history and parts.epoch == [*range(EPOCHS)]


@pytest.mark.backend_free
def test_a_finished_run_is_loaded_or_extended(tmp_path):
    """And one that ended before any epoch was finished begins anew."""

    def interrupt(batch, logs):
        raise KeyboardInterrupt

    settings = {**SHORT, "output": tmp_path, "resume": True}
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        kv.fit(small(), (TRAIN, VALIDATION), callbacks=[stop], **settings)
    one, other = small(), small()
    first = kv.fit(one, (TRAIN, VALIDATION), **settings)
    assert first.history == kv.fit(small(), (TRAIN, VALIDATION), **SHORT).history
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
