"""Speed, progress and curves of a training."""

import sys

import keras
import numpy as np
import pytest

from keras_vitx.training.callbacks import Clock, Progress, verbosity
from keras_vitx.training.figures import draw_curves

pytestmark = pytest.mark.backend_free


def test_images_per_second_and_the_time_left(capsys):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    clock = Clock(4)
    rows = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(clock.row))
    model.fit(
        np.zeros((12, 2)), np.zeros((12, 1)), 4, epochs=3, verbose=2,
        callbacks=[clock, note, Progress(clock)],
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert shown.count("images/s: ") == 3
    assert shown.count(" left\n") == 2, "from the second epoch on"
    assert [row["learning_rate"] for row in rows] == [0.25] * 3
    assert all(row["images_per_second"] > 0 for row in rows)


def test_seconds_of_an_epoch_that_was_resumed(monkeypatch):
    clock = Clock(4)
    clock.set_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    clock.model.compile("sgd", "mse")
    now = iter([100.0, 101.0, 103.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock.set_state({"seconds": 7.0})
    clock.on_epoch_begin(1)
    clock.on_train_batch_end(19)
    clock.on_epoch_end(1)
    assert clock.row["seconds"] == 10
    assert clock.row["images_per_second"] == 8


def test_a_pipe_gets_one_line_per_epoch(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert [verbosity(v) for v in ("auto", 0, 1, 2)] == [2, 0, 1, 2]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert verbosity("auto") == 1


def test_curves(tmp_path):
    rows = [
        {"epoch": 1, "loss": 2.0, "seconds": 1.0, "learning_rate": 1e-3},
        {"epoch": 2, "loss": 1.0, "val_loss": 1.5, "seconds": 1.0, "learning_rate": 1e-4},
    ]
    path = draw_curves(rows, tmp_path / "curves.svg")
    drawn = path.read_text()
    assert drawn.count('id="axes_') == 2, "one of the loss, one of the learning rate"
    assert draw_curves([], tmp_path / "empty.png").stat().st_size
