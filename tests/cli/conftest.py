import sys

import keras
import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.cli import __main__ as command


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["keras-vitx", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            command.main()
        written = capsys.readouterr()
        return stopped.value.code, written.out, written.err

    return run


@pytest.fixture
def small_set(tmp_path):
    """Two classes that differ in brightness, as an .npz."""
    random = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = random.integers(0, 80, (48, 32, 32, 3)) + 150 * labels[:, None, None, None]
    path = tmp_path / "small.npz"
    images = images.astype("uint8")
    np.savez(path, x_train=images, y_train=labels, x_test=images[:16], y_test=labels[:16])
    return path


@pytest.fixture
def tiny_file(tmp_path):
    keras.utils.set_random_seed(0)
    model = kv.CaiT(24, 1, 4, patch_size=8, input_shape=(32, 32, 3), classes=2)
    model.class_names = ("dark", "bright")
    model.save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"
