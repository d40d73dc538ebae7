import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vitx as kv
from keras_vitx import cli


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; check its exit code, return stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["keras-vitx", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        assert (stopped.value.code or 0) == code, err
        return out, err

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


@pytest.fixture(scope="session")
def tiny_model():
    """A model of 2 classes; tests must not change it."""
    keras.utils.set_random_seed(0)
    model = kv.CaiT(24, 1, 4, patch_size=8, input_shape=(32, 32, 3), classes=2)
    model.class_names = ("dark", "bright")
    return model


@pytest.fixture
def tiny_file(tiny_model, tmp_path):
    tiny_model.save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"


@pytest.fixture
def gray():
    """A function that writes an image of one brightness."""

    def write(path, value=220, size=(20, 30)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), value, "uint8")).save(path)

    return write
