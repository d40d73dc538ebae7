import csv

import keras
import numpy as np
import pytest
from harness import FAMILIES, close, numbers

from keras_vitx.analysis import MeasureDuringTraining, measure, read_dynamics

IMAGES = numbers((4, 16, 16, 3))
LABELS = np.arange(4) % 5


def trained(callback, model=None, **arguments):
    model = model or FAMILIES["ConViT"](drop_path=0.0)
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    arguments = {"batch_size": 2, "epochs": 2, "verbose": 0, **arguments}
    model.fit(IMAGES, LABELS, callbacks=[callback], **arguments)
    return model


def values(rows, name, block):
    return np.array(
        [row["value"] for row in rows if (row["measure"], row["block"]) == (name, block)]
    )


@pytest.mark.parametrize("every", (pytest.param(None, marks=pytest.mark.backend_free), 1))
def test_measures_of_the_weights_of_each_moment(every, tmp_path):
    path = tmp_path / "new" / "measures.csv"
    callback = MeasureDuringTraining(IMAGES, path, ["gates", "mlp_branch"], every=every)
    model = trained(callback, epochs=2 if every is None else 1)
    epochs = [0, 1, 2] if every is None else [0, 0.5, 1]
    gates = values(callback.rows, "gates", "blocks_1").reshape(len(epochs), 4)
    assert gates[0] == pytest.approx(np.full(4, 1 / (1 + np.exp(-1))), abs=1e-6)
    # The gates move at every step, and the last rows are of the trained model.
    assert (np.abs(np.diff(gates, axis=0)) > 1e-6).any(1).all()
    found = measure(model, IMAGES, ["gates", "mlp_branch"])
    close(gates[-1], found["gates"]["blocks_1"])
    close(values(callback.rows, "mlp_branch", "blocks_2")[-1], found["mlp_branch"]["blocks_2"])
    assert list(dict.fromkeys(row["epoch"] for row in callback.rows)) == epochs
    assert read_dynamics(path) == callback.rows
    with path.open() as file:
        assert next(csv.reader(file)) == ["epoch", "step", "measure", "block", "head", "value"]


@pytest.mark.backend_free
def test_training_goes_on_as_without():
    start, ends = FAMILIES["ViT"](drop_path=0.0).get_weights(), []
    for callbacks in ([], [MeasureDuringTraining(IMAGES, measures=["entropy"], every=1)]):
        model = FAMILIES["ViT"](drop_path=0.0)
        model.set_weights(start)
        keras.utils.set_random_seed(1)
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(IMAGES, LABELS, batch_size=2, epochs=1, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    assert all(map(np.array_equal, *ends))


@pytest.mark.backend_free
def test_continued_from_its_state(tmp_path):
    first = MeasureDuringTraining(IMAGES, measures="entropy")
    model = trained(first, epochs=1)
    second = MeasureDuringTraining(IMAGES, tmp_path / "m.csv", measures="entropy")
    second.set_state(first.get_state())
    trained(second, model, epochs=2, initial_epoch=1)
    rows = read_dynamics(tmp_path / "m.csv")
    seen = dict.fromkeys((row["epoch"], row["step"]) for row in rows)
    assert [*seen] == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.backend_free
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = MeasureDuringTraining(IMAGES, measures=["nonlocality"], log_dir=tmp_path)
    trained(callback)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = [f"nonlocality/blocks_{i}" for i in range(2)]
    assert set(tags) <= {tag for kind in events.Tags().values() if kind for tag in kind}
