"""`kv.fit`: what it trains, measures and writes."""

import csv
import logging

import keras
import numpy as np
import pytest
from harness import BACKEND, array
from training.fitting import (
    AGES,
    CHANGES,
    PREPROCESSING,
    SHORT,
    TEST,
    TRAIN,
    VALIDATION,
    WORSE,
    Batched,
    best_of,
    crossentropy,
    images_of,
    named,
    ready,
    run_of,
    same_weights,
    small,
)

import keras_vitx as kv
from keras_vitx.training import Recipe, recipes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "new" / "directory"
    model = small()
    history = kv.fit(model, (TRAIN, VALIDATION, TEST), output=output, seed=3, **SHORT)
    return model, history, output


def test_the_files_and_the_measures_of_a_run(run):
    """Measures are per split, without label smoothing, with the weights of the best epoch."""
    model, history, output = run
    files = "best.keras checkpoints curves.png held_out.txt history.csv run.json"
    assert {path.name for path in output.iterdir()} == set(files.split())
    rows = list(csv.DictReader((output / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for key, column in history.history.items():
        assert [float(row[key]) for row in rows] == pytest.approx(column, rel=1e-6)

    record, best = run_of(output), best_of(history.history)
    assert (record["best_epoch"], record["monitor"]) == (best + 1, "val_accuracy")
    assert record["validation"] == {
        name: pytest.approx(history.history[f"val_{name}"][best]) for name in ("loss", "accuracy")
    }
    assert record["test"] == history.test
    assert Recipe.read(output) == recipes.get("finetune").replace(**CHANGES)
    expected = {"model": "small", "seed": 3, "head": "kept", "backend": BACKEND, "devices": 1}
    expected |= {"train_images": 48, "validation_images": 14, "test_images": 22}
    assert expected.items() <= record.items() and "stopped" not in record
    for (images, labels), measured in ((VALIDATION, record["validation"]), (TEST, record["test"])):
        assert measured["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert measured["accuracy"] == pytest.approx(hits.mean())
    same_weights(keras.saving.load_model(output / "best.keras"), model)
    assert model.class_names == ("0", "1")


def test_a_directory_that_holds_a_run_is_refused(run):
    before = {path: path.read_bytes() for path in run[2].rglob("*.*") if path.is_file()}
    with pytest.raises(ValueError, match=f"without a run.*{run[2]}"):
        kv.fit(small(), TRAIN, output=run[2], **SHORT)
    assert {path: path.read_bytes() for path in run[2].rglob("*.*") if path.is_file()} == before


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


STOPS = [(error, n) for error in (FloatingPointError, KeyboardInterrupt) for n in (0, 1)]


@pytest.mark.parametrize(("error", "finished"), STOPS if BACKEND == "torch" else STOPS[1:3])
def test_a_run_that_stops_keeps_its_best_weights(error, finished, tmp_path, caplog):
    model = small()
    weights = model.get_weights()
    with pytest.raises(error) as raised:
        stop = Interruption(finished, error)
        kv.fit(model, (TRAIN, VALIDATION), output=tmp_path, callbacks=[stop], **SHORT)
    said = str(raised.value) if error is FloatingPointError else caplog.text
    assert ("weights of epoch 1 (val_accuracy" if finished else "before training") in said
    if error is FloatingPointError:
        assert f"step 1 of epoch {finished + 1}" in said
        assert "Next, look at these images, and try a lower `learning_rate`" in said
    record = run_of(tmp_path)
    assert record["stopped"].startswith(error.__name__)
    assert (record["best_epoch"], record["epochs_finished"]) == (finished or None, finished)
    assert (tmp_path / "best.keras").exists() == bool(finished)
    same_weights(model, keras.saving.load_model(tmp_path / "best.keras") if finished else weights)
    kv.fit(model, (TRAIN, VALIDATION), **SHORT)  # Training can continue from there.


def test_what_the_user_compiled_is_taken(caplog):
    """With callbacks, which see the validation, and weights of classes."""
    model, optimizer, seen = small(), keras.optimizers.SGD(0.1), []
    top = keras.metrics.SparseTopKCategoricalAccuracy(1, "top")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[top])
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(logs))
    # A callback may set the rate of one's own optimizer.
    callbacks = [note, keras.callbacks.ReduceLROnPlateau()]
    history = kv.fit(
        model, (TRAIN, VALIDATION), callbacks=callbacks, class_weight={0: 0.0, 1: 0.0}, **SHORT
    ).history
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
    history = kv.fit(model, (TRAIN, VALIDATION), **SHORT).history
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


def own_batches():
    images, labels = ready(TRAIN[0]), TRAIN[1]
    yield pytest.param(Batched(*TRAIN), id="PyDataset")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        for form in (labels, np.eye(2)[labels]):
            yield tf.data.Dataset.from_tensor_slices((images, form)).batch(16)
    if BACKEND == "torch":
        import torch

        data = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
        yield torch.utils.data.DataLoader(data, 16)


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
def test_own_batches_are_used_as_they_are(caplog):
    validation = Batched(*VALIDATION, size=5)
    model = small()
    history = kv.fit(model, kv.data.Pipelines(Batched(*TRAIN), validation), **SHORT).history
    assert min(history["val_loss"]) == pytest.approx(crossentropy(model, *VALIDATION), rel=1e-4)
    kv.fit(small(), Batched(*TRAIN), mixing=kv.data.Mixing(), **SHORT | {"epochs": 1})
    assert "without the recipe's augmentation and mixing" in caplog.text
    assert "pixels" not in caplog.text
    raw = Batched(*TRAIN)
    raw.images = (raw.images + 1) * 127.5
    kv.fit(small(), raw, **SHORT)
    assert "look like pixels in 0..255" in caplog.text


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
    kv.fit(model, TRAIN, augmentation=None, verbose=0)
    updates = int(array(model.optimizer.iterations))
    assert updates >= recipe.min_updates and f"{updates} updates" in caplog.text
    kv.fit(model, TRAIN, epochs=2, batch_size=16, verbose=0)
    assert "4 updates: 2 epochs of 2 batches, 16 images per update" in caplog.text
    # With micro-batches, `batch_size` is still the images of an update.
    kv.fit(model, TRAIN, accumulate_steps=2, validation_split=0, **SHORT)
    assert "6 updates: 2 epochs of 6 batches, 16 images per update" in caplog.text
    assert model.optimizer.gradient_accumulation_steps == 2


@pytest.mark.backend_free
def test_the_rate_is_that_of_the_batch_that_is_used():
    recipe = Recipe("mine").replace(base_batch_size=512, batch_size=1024, epochs=1, warmup_epochs=0)
    model = small()
    kv.fit(model, TRAIN, recipe, augmentation=None, verbose=0)
    rate = model.optimizer.get_config()["learning_rate"]["config"]["learning_rate"]
    assert rate == pytest.approx(5e-4 * 44 / 512)


@pytest.mark.backend_free
def test_the_head_first():
    keras.utils.set_random_seed(0)
    model = kv.ViT(8, 2, 2, patch_size=2, input_shape=(4, 4, 1), classes=2)
    body, head, seen = model.get_layer("blocks_0"), model.layers[-1], []
    # keras-team/keras#7145, keras-team/keras#19208
    model.get_layer("blocks_1").attention.trainable = False
    model.get_layer("blocks_1").mlp.fc1.enable_lora(2)
    trained = [variable.path for variable in model.trainable_variables]

    def note(logs=None):
        seen.append([array(body.variables[0]).copy(), array(head.kernel).copy()])

    note()
    begin = keras.callbacks.LambdaCallback(on_train_begin=note)
    kv.fit(model, TRAIN, freeze_epochs=2, callbacks=[begin], **SHORT)
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert np.abs(seen[0][1] - seen[1][1]).max() > 1e-4
    assert np.abs(array(body.variables[0]) - seen[1][0]).max() > 1e-6
    assert [variable.path for variable in model.trainable_variables] == trained


@pytest.mark.backend_free
def test_early_stopping():
    history = kv.fit(small(), WORSE, **{**SHORT, "epochs": 20, "patience": 2}).history
    assert len(history["loss"]) < 20


@pytest.mark.backend_free
def test_a_callback_that_restores_weights_has_the_last_word():
    model = small()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    kv.fit(model, WORSE, callbacks=[stop], result="last", **{**SHORT, "epochs": 4})
    assert stop.best_epoch == 0
    same_weights(model, stop.best_weights)


@pytest.mark.backend_free
def test_all_labels_are_checked():
    """Not only those of the first batch: beforehand if they are known, else before their step."""
    images, _ = images_of(48)
    rows = np.eye(3, dtype="float32")[np.arange(48) % 3]
    rows[40, :2] = 1  # Several labels, for a softmax.
    late = np.where(np.arange(48) < 40, 0, 2)
    for seed in range(4):
        with pytest.raises(ValueError, match="several labels"):
            kv.fit(small(3), (images, rows), seed=seed, **SHORT)
    with pytest.raises(ValueError, match=r"0\.\.1 .* Received: 0\.\.2"):
        kv.evaluate(small(), (images, late), batch_size=8)
    for function in (kv.evaluate, lambda *given: kv.fit(*given, **SHORT)):
        function(small(), Batched(images, np.minimum(late, 1)))
        # TensorFlow raises its own class of errors, with the same words.
        with pytest.raises(Exception, match=r"0\.\.1 .* Received: 0\.\.2"):
            function(small(), Batched(images, late))


@pytest.mark.backend_free
def test_two_trainings_in_one_directory(tmp_path):
    asked = []

    def second(epoch, logs):
        with pytest.raises(ValueError, match=r"in use"):
            kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)
        asked.append(epoch)

    end = keras.callbacks.LambdaCallback(on_epoch_end=second)
    kv.fit(small(), TRAIN, output=tmp_path, callbacks=[end], **SHORT)
    assert asked == [0, 1]
    kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)
