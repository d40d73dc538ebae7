"""The callbacks of `fit`, without training, and the figures of a run."""

import csv
import sys

import keras
import numpy as np
import pytest
from harness import array

from keras_vitx.training.callbacks import BestCheckpoint, Throughput, verbosity
from keras_vitx.training.run import draw_curves

ACCURACIES = [{"val_accuracy": a, "val_loss": 0.0} for a in (0.2, 0.8, 0.5, 0.8)]
TIES = [{"val_accuracy": 0.5, "val_loss": a} for a in (0.62, 0.2, 0.18, 0.3)]


def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])


def bias_of(model):
    return array(model.layers[0].bias)[0]


def run(keep, *epochs):
    """End epochs with these logs; the bias is then the number of the epoch."""
    for epoch, logs in enumerate(epochs):
        keep.model.layers[0].bias.assign([epoch + 1.0])
        keep.on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("epochs", "result", "best", "monitor"),
    [
        (ACCURACIES, "best", 2, "val_accuracy"),
        (ACCURACIES, "last", 4, None),
        (TIES, "best", 3, "val_accuracy"),  # Of equal accuracies, the lower loss is better.
        ([{"val_loss": a} for a in (3.0, 1.0, 2.0, 1.0)], "best", 2, "val_loss"),
        ([{"loss": a} for a in (1.0, 2.0, 3.0)], "best", 3, None),
    ],
)
def test_the_best_epoch(epochs, result, best, monitor, tmp_path):
    keep = BestCheckpoint(model(), tmp_path, result)
    keep.model.layers[0].bias.assign([9.0])
    assert "before training" in keep.restore()
    assert bias_of(keep.model) == 0
    run(keep, *epochs)
    assert f"epoch {best}" in keep.restore()
    saved = keras.saving.load_model(tmp_path / f"{result}.keras")
    assert bias_of(keep.model) == bias_of(saved) == best
    measures = {k[4:]: v for k, v in epochs[best - 1].items() if k.startswith("val")}
    assert keep.summary() == {
        "best_epoch": best,
        "epochs_finished": len(epochs),
        "monitor": monitor,
        "validation": measures or None,
    }
    # The history is written each epoch.
    (*_, row) = rows = list(csv.DictReader((tmp_path / "history.csv").open()))
    assert len(rows) == len(epochs)
    assert row == {k: str(v) for k, v in {"epoch": len(epochs), **epochs[-1]}.items()}


@pytest.mark.parametrize("what", ["validation loss", "weights"])
def test_what_is_not_finite_is_never_best(what, tmp_path):
    keep = BestCheckpoint(model(), tmp_path)
    run(keep, {"val_accuracy": 0.5, "val_loss": 1.0})
    keep.model.layers[0].bias.assign([np.nan if what == "weights" else 7.0])
    logs = {"val_accuracy": 0.9, "val_loss": np.inf if what == "validation loss" else 1.0}
    with pytest.raises(FloatingPointError, match=f"{what}.*epoch 2"):
        keep.on_epoch_end(1, logs)
    keep.restore()
    assert bias_of(keep.model) == 1
    assert (tmp_path / "history.csv").read_text().count("\n") == 3


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0), [0.8, 0.5, 0.2]),
        (0.25, [0.25] * 3),
    ],
)
def test_the_rate_of_the_last_update_the_speed_and_the_time_left(rate, expected, capsys):
    network, throughput, rows = model(), Throughput(4), []
    network.compile(keras.optimizers.SGD(rate), "mse")
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: rows.append(throughput.row))
    x, y = np.zeros((12, 2)), np.zeros((12, 1))
    network.fit(x, y, 4, epochs=3, verbose=2, callbacks=[throughput, note])
    shown = capsys.readouterr().out
    assert shown.count("images/s: ") == 3
    assert shown.count(" left\n") == 2, "from the second epoch on"
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected)
    assert all(row["images_per_second"] > 0 for row in rows)
    # The seconds of an epoch that was resumed are added.
    throughput.set_state({"seconds": 7.0})
    throughput.on_epoch_begin(1)
    throughput.on_train_batch_end(19, {})
    assert 7 < throughput.get_state()["seconds"] < 60


@pytest.mark.backend_free
def test_a_pipe_gets_one_line_per_epoch(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert [verbosity(v) for v in ("auto", 0, 1, 2)] == [2, 0, 1, 2]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert verbosity("auto") == 1


@pytest.mark.backend_free
def test_curves_of_loss_and_learning_rate(tmp_path):
    first = {"epoch": 1, "loss": 2.0, "seconds": 1.0, "learning_rate": 1e-3}
    rows = [first, {**first, "epoch": 2, "val_loss": 1.5}]
    draw_curves(rows, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().count('id="axes_') == 2
