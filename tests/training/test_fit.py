"""`kv.fit`: what it trains, measures and writes."""

import csv
import logging
import time

import keras
import numpy as np
import pytest
from harness import BACKEND, array
from training.fitting import (
    AGES,
    PREPROCESSING,
    SHORT,
    TEST,
    TRAIN,
    VALIDATION,
    WORSE,
    Batched,
    best_of,
    crossentropy,
    named,
    ready,
    run_of,
    same_weights,
    small,
)

import keras_vitx as kv
from keras_vitx.training import Recipe, recipes
from keras_vitx.training.batches import weigh


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "new" / "directory"
    model = small()
    history = kv.fit(model, (TRAIN, VALIDATION, TEST), output=output, seed=3, **SHORT)
    return model, history, output


def test_the_files_and_the_measures_of_a_run(run):
    """Measures are per split, without label smoothing, with the weights of the best epoch."""
    model, history, output = run
    files = {"best.keras", "history.csv", "restart.safetensors", "run.json"}
    assert {path.name for path in output.iterdir()} == files
    rows = list(csv.DictReader((output / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    for key, column in history.history.items():
        assert [float(row[key]) for row in rows] == pytest.approx(column, rel=1e-6)

    record, best = run_of(output), best_of(history.history)
    assert record["metrics"] == {key: values[best] for key, values in history.history.items()}
    assert record["test"] == history.test
    assert recipes.get(output) == recipes.get("finetune").replace(**SHORT)
    expected = {"model": "small", "seed": 3, "backend": BACKEND, "devices": 1, "source": "tuple"}
    expected |= {"best_epoch": best + 1, "held_out": []}
    assert expected.items() <= record.items()
    found = {name: record["metrics"][f"val_{name}"] for name in ("loss", "accuracy")}
    for (images, labels), measured in ((VALIDATION, found), (TEST, record["test"])):
        assert measured["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert measured["accuracy"] == pytest.approx(hits.mean())
    same_weights(keras.saving.load_model(output / "best.keras"), model)
    assert model.class_names == ("0", "1")


class Interruption(keras.callbacks.Callback):
    """Make the first step of an epoch fail."""

    def __init__(self, epoch, error):
        super().__init__()
        self.epoch, self.error = epoch, error

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch == self.epoch
        if self.now and self.error is FloatingPointError:
            self.model.layers[-1].bias.assign([np.nan, 0.0])

    def on_train_batch_end(self, batch, logs=None):
        if self.now and self.error is not FloatingPointError:
            raise self.error("now")


@pytest.mark.parametrize(
    ("error", "finished"),
    [
        (FloatingPointError, 1),
        *(pytest.param(KeyboardInterrupt, n, marks=pytest.mark.backend_free) for n in (0, 1)),
    ],
)
def test_a_run_that_stops_keeps_its_best_weights(error, finished, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    model = small()
    weights = model.get_weights()
    with pytest.raises(error) as raised:
        stop = Interruption(finished, error)
        kv.fit(model, (TRAIN, VALIDATION), output=tmp_path, callbacks=[stop], **SHORT)
    assert ("weights of epoch 1" if finished else "from before training") in caplog.text
    if error is FloatingPointError:
        assert f"step 1 of epoch {finished + 1}: a label that no class has?" in str(raised.value)
    same_weights(model, keras.saving.load_model(tmp_path / "best.keras") if finished else weights)
    kv.fit(model, (TRAIN, VALIDATION), **SHORT)  # Training can continue from there.


WITHOUT_RATE = {name: value for name, value in SHORT.items() if name != "learning_rate"}


def test_what_the_user_compiled_is_taken(caplog):
    """With callbacks, which see the validation, and weights of classes."""
    model, optimizer, seen = small(), keras.optimizers.SGD(0.1), []
    top = keras.metrics.SparseTopKCategoricalAccuracy(1, "top")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[top])
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(logs))
    # A callback may set the rate of one's own optimizer.
    callbacks = [note, keras.callbacks.ReduceLROnPlateau()]
    settings = {"callbacks": callbacks, "class_weight": {0: 0.0, 1: 0.0}, **WITHOUT_RATE}
    history = kv.fit(model, (TRAIN, VALIDATION), **settings).history
    assert model.optimizer is optimizer
    assert model.loss == "sparse_categorical_crossentropy"
    assert {"loss", "top", "val_loss", "val_top"} <= set(history) and "accuracy" not in history
    assert history["loss"] == [0, 0]
    assert history["val_loss"][0] == pytest.approx(crossentropy(small(), *VALIDATION), rel=1e-4)
    assert [logs["val_loss"] for logs in seen] == history["val_loss"]
    assert "SGD" in caplog.text and "is compiled" in caplog.text


@pytest.mark.backend_free
def test_what_the_user_did_not_compile_is_the_recipes(run, caplog):
    model = small()
    model.compile(keras.optimizers.SGD(0.1))
    history = kv.fit(model, (TRAIN, VALIDATION), **WITHOUT_RATE).history
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert {"loss", "accuracy", "val_loss"} <= set(history)
    caplog.clear()
    # Nor is what an earlier `fit` compiled.
    for model in (run[0], keras.saving.load_model(run[2] / "best.keras")):
        model.preprocessing = PREPROCESSING
        old = model.optimizer
        kv.fit(model, (TRAIN, VALIDATION), **SHORT)
        assert model.optimizer is not old
    assert "is compiled" not in caplog.text


@pytest.mark.backend_free  # the losses are tested on each backend
@pytest.mark.parametrize(
    ("outputs", "activation", "labels", "metric"),
    [
        (2, None, np.eye(2)[TRAIN[1]] * 0.8 + 0.1, "accuracy"),
        (1, "sigmoid", TRAIN[1], "accuracy"),
        (3, "sigmoid", np.stack([TRAIN[1], 1 - TRAIN[1], np.zeros(48, int)], 1), "binary_accuracy"),
        (1, None, AGES, "mean_absolute_error"),
    ],
)
def test_labels_of_all_forms(outputs, activation, labels, metric):
    changes = {**SHORT, "epochs": 1}
    history = kv.fit(small(outputs, activation), (TRAIN[0], labels), **changes).history
    assert set(history) == {"loss", metric, "val_loss", f"val_{metric}"}
    assert np.isfinite(history["loss"]).all()


class InTurn:
    """Batches of unknown number, without an index."""

    def __iter__(self):
        images = ready(TRAIN[0])
        return ((images[i : i + 16], TRAIN[1][i : i + 16]) for i in (0, 16, 32))


def own_batches():
    yield pytest.param(Batched(*TRAIN), id="PyDataset")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        arrays = ready(TRAIN[0]), np.eye(2)[TRAIN[1]]
        yield tf.data.Dataset.from_tensor_slices(arrays).batch(16)


@pytest.mark.parametrize("batches", list(own_batches()))
def test_batches_of_ones_own(batches, tmp_path):
    model = small()
    history = kv.fit(model, batches, output=tmp_path, **SHORT)
    assert set(history.history) == {"loss", "accuracy"}
    assert run_of(tmp_path)["best_epoch"] == 2
    alone = kv.evaluate(model, batches)
    assert (alone["split"], alone["images"]) == ("batches", 48)
    assert alone["loss"] == pytest.approx(crossentropy(model, *TRAIN), rel=1e-4)


@pytest.mark.backend_free
def test_own_batches_are_used_as_they_are():
    validation, model = Batched(*VALIDATION, size=5), small()
    history = kv.fit(model, kv.data.Pipelines(Batched(*TRAIN), validation), **SHORT).history
    assert min(history["val_loss"]) == pytest.approx(crossentropy(model, *VALIDATION), rel=1e-4)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow's own data")
def test_endless_batches():
    import tensorflow as tf

    images, labels = TRAIN
    endless = tf.data.Dataset.from_tensor_slices((ready(images), labels)).repeat().batch(16)
    with pytest.raises(ValueError, match="`steps_per_epoch`"):
        kv.fit(small(), endless, **SHORT)
    model = small()
    assert len(kv.fit(model, endless, steps_per_epoch=5, **SHORT).history["loss"]) == 2
    assert int(array(model.optimizer.iterations)) == 10


def test_batches_in_turn():
    for steps in (2, 3, 5):  # The 3 batches begin again where they end.
        model = small()
        history = kv.fit(model, (InTurn(), InTurn()), steps_per_epoch=steps, **SHORT).history
        assert int(array(model.optimizer.iterations)) == 2 * steps
        assert history["val_loss"][-1] == pytest.approx(
            kv.evaluate(model, InTurn(), predictions=True)["loss"]
        )
    # Keras ends an epoch where a `PyDataset` ends.
    model = small()
    kv.fit(model, Batched(*TRAIN), steps_per_epoch=2, **SHORT)
    assert int(array(model.optimizer.iterations)) == 4


class Told(Batched):
    def __init__(self, workers=1):
        super().__init__(*TRAIN)
        self.workers, self.events, self.read, self.at_once = workers, [], 0, 0

    def __getitem__(self, index):
        self.events.append(index)
        self.read += 1
        self.at_once = max(self.at_once, self.read)
        time.sleep(0.02 * (len(self) - index))  # The first one comes last.
        self.read -= 1
        return super().__getitem__(index)

    def on_epoch_begin(self):
        self.events.append("begin")

    def on_epoch_end(self):
        self.events.append("end")


def test_a_dataset_of_keras_is_told_of_its_epochs_as_by_keras():
    looked_at = ["begin", 0, "end"]
    batches, model = Told(), small()
    kv.fit(model, batches, **SHORT)
    assert batches.events == [*looked_at, *2 * ["begin", 0, 1, 2, "end"]]
    batches = Told()
    kv.fit(model, batches, steps_per_epoch=2, **SHORT)
    assert batches.events == [*looked_at, "begin", 0, 1, "end", "begin", 2, 0, "end"]
    batches = Told()
    kv.evaluate(model, batches)
    assert batches.events == [*looked_at, "begin", 0, 1, 2, "end"]


@pytest.mark.backend_free
def test_a_dataset_of_keras_is_read_by_its_workers():
    losses = []
    for workers in (1, 3):
        batches = Told(workers)
        losses.append(kv.fit(small(), batches, class_weight={1: 2.0}, **SHORT).history["loss"])
        assert (batches.at_once > 1) == (workers > 1)
    assert losses[0] == losses[1]


@pytest.mark.backend_free
def test_class_weights_of_soft_labels():
    soft = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.2, 0.8]], "float32")
    _, _, weights = weigh(np.array([1, 11], "float32"), 0, (None, soft, np.array([1, 1, 0, 1])))
    np.testing.assert_allclose(weights, [6, 1, 0, 9])
    _, _, weights = weigh(np.array([1, 11], "float32"), 0, (None, np.array([[1], [0]])))
    np.testing.assert_allclose(weights, [11, 1])


@pytest.mark.backend_free
def test_class_weights_of_several_labels():
    labels = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1]] * 12, "float32")
    model = small(3, "sigmoid")
    p = model.predict(ready(TRAIN[0]), verbose=0)
    losses = -(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    settings = {**SHORT, "epochs": 1, "label_smoothing": 0.0, "learning_rate": 1e-6}
    history = kv.fit(model, Batched(TRAIN[0], labels), class_weight={1: 10}, **settings).history
    assert history["loss"][0] == pytest.approx((losses * [1, 10, 1]).mean(), rel=1e-3)


@pytest.mark.backend_free
def test_weights_of_classes_by_name(tmp_path):
    source = named(tmp_path / "named.npz", *TRAIN, ("left", "right"))
    for weights in ({"left": 0.0, "right": 0.0}, {0: 0, np.int64(1): 0}):
        history = kv.fit(small(), source, class_weight=weights, **SHORT).history
        assert history["loss"] == [0, 0]


@pytest.mark.backend_free
def test_few_images_have_enough_updates(caplog):
    caplog.set_level(logging.INFO)
    recipe, model = recipes.get("finetune"), small()
    kv.fit(model, TRAIN, augmentation=None)
    updates = int(array(model.optimizer.iterations))
    assert updates >= recipe.min_updates and f"{updates} updates" in caplog.text
    kv.fit(model, TRAIN, epochs=2, batch_size=16)
    assert "4 updates: 2 epochs of 2 batches, 16 images per update" in caplog.text
    # With micro-batches, `batch_size` is still the images of an update.
    kv.fit(model, TRAIN, accumulate_steps=2, validation_split=0, **SHORT)
    assert "6 updates: 2 epochs of 6 batches, 16 images per update" in caplog.text
    assert model.optimizer.gradient_accumulation_steps == 2


@pytest.mark.backend_free
def test_the_rate_is_that_of_the_batch_that_is_used():
    recipe = Recipe("mine").replace(base_batch_size=512, batch_size=1024, epochs=1, warmup_epochs=0)
    model = small()
    kv.fit(model, TRAIN, recipe, augmentation=None)
    rate = model.optimizer.get_config()["learning_rate"]["config"]["learning_rate"]
    assert rate == pytest.approx(5e-4 * 44 / 512)


@pytest.mark.backend_free
def test_an_epoch_of_some_steps_continues_with_the_next_images():
    """Two epochs of four steps are one of eight, over three passes over the images."""
    models = [small(), small()]
    for model, epochs in zip(models, (2, 1), strict=True):
        steps = {"epochs": epochs, "steps_per_epoch": 8 // epochs, "decay": "constant"}
        kv.fit(model, TRAIN, validation_split=0, result="last", **SHORT | steps)
    same_weights(*models)


@pytest.mark.backend_free
def test_a_callback_that_restores_weights_has_the_last_word():
    model = small()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    kv.fit(model, WORSE, callbacks=[stop], result="last", **{**SHORT, "epochs": 4})
    assert stop.best_epoch == 0
    same_weights(model, stop.best_weights)


@pytest.mark.backend_free
def test_all_labels_of_a_source_are_checked():
    rows = np.eye(3, dtype="float32")[np.arange(48) % 3]
    rows[40, :2] = 1  # Several labels, for a softmax.
    with pytest.raises(ValueError, match="several labels"):
        kv.fit(small(3), (TRAIN[0], rows), **SHORT)
    with pytest.raises(ValueError, match=r"0\.\.1, .* Received: '0\.\.2"):
        kv.evaluate(small(), (TRAIN[0], np.where(np.arange(48) < 40, 0, 2)), batch_size=8)
