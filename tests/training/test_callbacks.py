"""The callbacks of `fit`, without training."""

import csv

import keras
import numpy as np
import pytest
from harness import array

from keras_vitx import training
from keras_vitx.training.callbacks import KeepBest, StopAtNonFinite, Validate


def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])


def run(keep, *epochs):
    """End epochs with these logs; the bias is then the number of the epoch."""
    for epoch, logs in enumerate(epochs):
        keep.model.layers[0].bias.assign([epoch + 1.0])
        keep.on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("epochs", "best"),
    [
        ([{"val_accuracy": a, "val_loss": 0.0} for a in (0.2, 0.8, 0.5, 0.8)], 2),
        # Of equal accuracies, the lower loss is better.
        ([{"val_accuracy": 0.5, "val_loss": a} for a in (0.62, 0.2, 0.18, 0.3)], 3),
        ([{"val_loss": a} for a in (3.0, 1.0, 2.0, 1.0)], 2),
        ([{"loss": a} for a in (1.0, 2.0, 3.0)], 3),
    ],
)
def test_the_best_epoch(epochs, best, tmp_path):
    keep = KeepBest(model(), tmp_path)
    run(keep, *epochs)
    said = keep.restore()
    assert keep.epoch == best
    assert f"epoch {best}" in said
    assert array(keep.model.layers[0].bias)[0] == best
    saved = keras.saving.load_model(tmp_path / "best.keras")
    assert array(saved.layers[0].bias)[0] == best
    facts = keep.summary()
    assert (facts["best_epoch"], facts["epochs_finished"]) == (best, len(epochs))
    assert facts["monitor"] == next((k for k in epochs[0] if k.startswith("val")), None)
    measures = {k[4:]: v for k, v in epochs[best - 1].items() if k.startswith("val")}
    assert facts["validation"] == (measures or None)


def test_history_is_written_each_epoch(tmp_path):
    keep = KeepBest(model(), tmp_path)
    run(keep, {"loss": 1.0}, {"loss": 2.0, "val_loss": 0.5})
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"epoch": "1", "loss": "1.0", "val_loss": ""},
        {"epoch": "2", "loss": "2.0", "val_loss": "0.5"},
    ]


@pytest.mark.parametrize("what", ["validation loss", "weights"])
def test_what_is_not_finite_is_never_best(what, tmp_path):
    keep = KeepBest(model(), tmp_path)
    run(keep, {"val_accuracy": 0.5, "val_loss": 1.0})
    keep.model.layers[0].bias.assign([np.nan if what == "weights" else 7.0])
    logs = {"val_accuracy": 0.9, "val_loss": np.inf if what == "validation loss" else 1.0}
    with pytest.raises(FloatingPointError, match=f"{what}.*epoch 2"):
        keep.on_epoch_end(1, logs)
    keep.restore()
    assert array(keep.model.layers[0].bias)[0] == 1
    assert (tmp_path / "history.csv").read_text().count("\n") == 3


def test_before_the_first_epoch():
    keep = KeepBest(model())
    keep.model.layers[0].bias.assign([9.0])
    assert "before training" in keep.restore()
    assert array(keep.model.layers[0].bias)[0] == 0


def test_stop_at_non_finite():
    stop = StopAtNonFinite()
    stop.set_model(model())
    stop.model.stop_training = False
    stop.on_train_batch_end(0, {"loss": 1.0})
    stop.on_epoch_end(0, {"loss": 1.0})
    assert not stop.model.stop_training
    stop.on_train_batch_end(3, {"loss": np.nan})
    stop.on_train_batch_end(2, {"loss": np.inf})
    assert stop.model.stop_training
    with pytest.raises(FloatingPointError, match="step 3 of epoch 2"):
        stop.on_epoch_end(1, {"loss": np.nan})


def test_validation_joins_the_logs():
    logs = {"loss": 1.0}
    Validate(lambda: {"loss": 2.0, "accuracy": 0.5}).on_epoch_end(0, logs)
    assert logs == {"loss": 1.0, "val_loss": 2.0, "val_accuracy": 0.5}


@pytest.mark.backend_free
def test_the_old_name_of_the_evaluator():
    with pytest.warns(DeprecationWarning, match=r"is now .Evaluator."):
        assert training.Measured is training.Evaluator
