"""The callbacks of `fit`, without training."""

import sys

import keras
import numpy as np
import pytest
from harness import array

from keras_vitx.training import BestEpoch, Recipe
from keras_vitx.training.callbacks import verbosity

pytestmark = pytest.mark.backend_free
ACCURACIES = [{"val_accuracy": a, "val_loss": 0.0} for a in (0.2, 0.8, 0.5, 0.8)]
TIES = [{"val_accuracy": 0.5, "val_loss": a} for a in (0.62, 0.2, 0.18, 0.3)]


def keeping(path=None, **settings):
    layers = [keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)]
    return BestEpoch(keras.Sequential(layers), path, Recipe("mine", **settings))


def bias_of(model):
    return array(model.layers[0].bias)[0]


def run(keep, *epochs):
    """End epochs with these logs; the bias is then the number of the epoch."""
    for epoch, logs in enumerate(epochs):
        keep.model.layers[0].bias.assign([epoch + 1.0])
        keep.on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("epochs", "result", "best"),
    [
        (ACCURACIES, "best", 2),
        (ACCURACIES, "last", 4),
        (TIES, "best", 3),  # Of equal accuracies, the lower loss is better.
        ([{"val_loss": a} for a in (3.0, 1.0, 2.0, 1.0)], "best", 2),
        # tensorflow/tensorflow#38648
        ([{"val_top_5_accuracy": a, "val_acc": -a, "val_loss": -a} for a in (2, 1, 3)], "best", 2),
        ([{"loss": a} for a in (1.0, 2.0, 3.0)], "best", 3),
    ],
)
def test_the_best_epoch(epochs, result, best, tmp_path):
    keep = keeping(tmp_path / "best.keras", result=result)
    keep.model.layers[0].bias.assign([9.0])
    keep.restore()
    assert bias_of(keep.model) == 0
    run(keep, *epochs)
    keep.restore()
    saved = keras.saving.load_model(tmp_path / "best.keras")
    assert bias_of(keep.model) == bias_of(saved) == best
    assert (keep.epoch, keep.logs) == (best, epochs[best - 1])


def test_a_compiled_accuracy_counts_by_any_name():
    keep = keeping()
    keep.model.compile(loss="mse", metrics=[keras.metrics.BinaryAccuracy(name="right")])
    run(keep, *({"val_right": a, "val_loss": a} for a in (0.2, 0.8, 0.5)))
    assert keep.epoch == 2


@pytest.mark.parametrize("what", ["loss", "weights"])
def test_what_is_not_finite_is_never_best(what):
    keep = keeping()
    run(keep, {"val_accuracy": 0.5, "val_loss": 1.0})
    keep.model.layers[0].bias.assign([np.nan if what == "weights" else 7.0])
    logs = {"val_accuracy": 0.9, "val_loss": np.inf if what == "loss" else 1.0}
    with pytest.raises(FloatingPointError, match="epoch 2"):
        keep.on_epoch_end(1, logs)
    keep.restore()
    assert bias_of(keep.model) == 1


def test_a_pipe_gets_one_line_per_epoch(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for is_terminal, expected in ((False, 2), (True, 1)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert verbosity() == expected and verbosity(0) == 0
    monkeypatch.setattr(keras.config, "is_interactive_logging_enabled", lambda: False)
    assert verbosity() == 0
