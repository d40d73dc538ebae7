"""`kv.fit`: what it trains, measures and writes, and what it refuses."""

import csv
import json
import sys

import keras
import numpy as np
import pytest
from harness import BACKEND, array, close

import keras_vitx as kv
from keras_vitx.training import Recipe, recipes

PREPROCESSING = {"mean": (0.5,), "std": (0.5,), "crop_ratio": 1.0, "interpolation": "bicubic"}


def small(classes=2, activation="softmax"):
    """A network of one layer, enough for tests of `fit` itself."""
    keras.utils.set_random_seed(0)
    head = keras.layers.Dense(classes, activation=activation)
    layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), head]
    model = keras.Sequential(layers, name="small")
    model.preprocessing = PREPROCESSING
    return model


def images_of(count=48, seed=0):
    """Images, uint8 (count, 4, 4, 1), bright on the left (class 0) or on the right (class 1)."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(0, 120, (count, 4, 4, 1))
    images[labels == 0, :, :2] += 100
    images[labels == 1, :, 2:] += 100
    return images.astype("uint8"), labels.astype("int32")


def ready(images):
    return (images / 127.5 - 1).astype("float32")


TRAIN, VALIDATION, TEST = images_of(48), images_of(14, 1), images_of(22, 2)
# A flipped image would have the wrong label.
CHANGES = {"epochs": 2, "batch_size": 16, "warmup_epochs": 0, "learning_rate": 1e-2}
CHANGES["augmentation"] = None
SHORT = {**CHANGES, "verbose": 0}


class Batched(keras.utils.PyDataset):
    """User-defined batches."""

    def __init__(self, images, labels, size=16):
        super().__init__()
        self.images, self.labels, self.size = ready(images), labels, size

    def __len__(self):
        return -(-len(self.images) // self.size)

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.images[part], self.labels[part]


class Unlabeled(Batched):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


def best_of(history):
    """Return the index of the highest accuracy, and of the lowest loss among several."""
    return int(np.lexsort([history["val_loss"], -np.array(history["val_accuracy"])])[0])


def same_weights(model, weights):
    for one, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)


def crossentropy(model, images, labels):
    outputs = model.predict(ready(images), verbose=0)
    return -np.log(outputs[np.arange(len(labels)), labels]).mean()


def run_of(output):
    return json.loads((output / "run.json").read_text())


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

    record, logs = run_of(output), history.history
    best = best_of(logs)
    assert (record["best_epoch"], record["monitor"]) == (best + 1, "val_accuracy")
    assert record["validation"] == {
        name: pytest.approx(logs[f"val_{name}"][best]) for name in ("loss", "accuracy")
    }
    assert record["test"] == history.test
    assert Recipe.read(output) == recipes.get("finetune").replace(**CHANGES)
    expected = {"model": "small", "seed": 3, "head": "kept", "backend": BACKEND, "devices": 1}
    assert expected.items() <= record.items() and "stopped" not in record
    assert [record[f"{p}_images"] for p in ("train", "validation", "test")] == [48, 14, 22]
    for (images, labels), measured in ((VALIDATION, record["validation"]), (TEST, record["test"])):
        assert measured["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert measured["accuracy"] == pytest.approx(hits.mean())
    same_weights(keras.saving.load_model(output / "best.keras"), model.get_weights())
    assert model.class_names == ("0", "1")


def test_a_directory_that_holds_a_run_is_refused(run):
    before = {path: path.read_bytes() for path in run[2].rglob("*.*") if path.is_file()}
    with pytest.raises(ValueError, match=f"without a run.*{run[2]}"):
        kv.fit(small(), TRAIN, output=run[2], **SHORT)
    assert {path: path.read_bytes() for path in run[2].rglob("*.*") if path.is_file()} == before


def test_a_seed_repeats_a_run(run):
    again = kv.fit(small(), (TRAIN, VALIDATION), seed=3, **SHORT).history
    for key, column in again.items():
        close(column, run[1].history[key], 1e-5, key)


def test_a_network_of_the_zoo_learns():
    """In half precision, with logits, on images held out from the training images."""
    keras.utils.set_random_seed(0)
    model = kv.CaiT(
        16, 1, 2, class_depth=1, layer_scale=0.5, patch_size=2, input_shape=(4, 4, 1), classes=2,
        classifier_activation=None,
    )  # fmt: skip
    # Told apart by brightness: positions start too small to be learned in so few steps.
    labels = np.arange(200) % 2
    images = np.random.default_rng(0).integers(0, 120, (200, 4, 4, 1))
    images += 100 * labels[:, None, None, None]
    recipe = Recipe("mine").replace(epochs=3, batch_size=16, learning_rate=1e-2, augmentation=None)
    history = kv.fit(
        model, (images.astype("uint8"), labels), recipe, validation_split=0.2,
        precision="mixed_bfloat16", verbose=0,
    )  # fmt: skip
    assert max(history.history["val_accuracy"]) > 0.9
    assert history.test is None
    assert model.get_layer("blocks_0").compute_dtype == "bfloat16"
    assert model.loss.from_logits


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
    if finished:
        weights = keras.saving.load_model(tmp_path / "best.keras").get_weights()
    same_weights(model, weights)
    # Training can continue from there.
    kv.fit(model, (TRAIN, VALIDATION), **SHORT)


def test_what_the_user_compiled_is_taken(caplog):
    """With callbacks, which see the validation, and weights of classes."""
    model = small()
    optimizer = keras.optimizers.SGD(0.1)
    top = keras.metrics.SparseTopKCategoricalAccuracy(1, "top")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=[top])
    seen = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(logs))
    history = kv.fit(
        model, (TRAIN, VALIDATION), callbacks=[note], class_weight={0: 0.0, 1: 0.0}, **SHORT
    ).history
    assert model.optimizer is optimizer
    assert model.loss == "sparse_categorical_crossentropy"
    assert set(history) == {"loss", "top", "val_loss", "val_top"}
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


AGES = np.where(TRAIN[1], 23.0, 41.0)
SEVERAL = np.stack([TRAIN[1], 1 - TRAIN[1], np.zeros(48, int)], 1)


@pytest.mark.backend_free  # the losses are tested on each backend
@pytest.mark.parametrize(
    ("outputs", "activation", "labels", "metric"),
    [
        (2, "softmax", np.eye(2)[TRAIN[1]], "accuracy"),
        (2, None, np.eye(2)[TRAIN[1]] * 0.8 + 0.1, "accuracy"),
        (2, "sigmoid", TRAIN[1], "accuracy"),
        (1, "sigmoid", TRAIN[1], "accuracy"),
        (3, "sigmoid", SEVERAL, "binary_accuracy"),
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
    found = [("PyDataset", Batched(*TRAIN))]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        for name, form in (("tf.data", labels), ("tf.data, one-hot", np.eye(2)[labels])):
            found.append((name, tf.data.Dataset.from_tensor_slices((images, form)).batch(16)))
    if BACKEND == "torch":
        import torch

        data = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
        found.append(("DataLoader", torch.utils.data.DataLoader(data, 16)))
    return found


@pytest.mark.parametrize(("kind", "batches"), own_batches(), ids=lambda case: str(case)[:9])
def test_batches_of_ones_own(kind, batches, tmp_path):
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
    with pytest.raises(ValueError, match=r"`fraction` .* batches, which are used whole.* 0\.5"):
        kv.fit(small(), Batched(*TRAIN), fraction=0.5, **SHORT)


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
def test_mixed_images_and_a_fraction_of_them(tmp_path):
    options = SHORT | {"augmentation": "rand_augment", "mixing": kv.data.Mixing(), "epochs": 1}
    kv.fit(small(), (TRAIN, VALIDATION), fraction=0.5, output=tmp_path, **options)
    record = run_of(tmp_path)
    assert (record["train_images"], record["validation_images"]) == (24, 14)
    assert record["recipe"]["mixing"]["cutmix"] == 1.0


def test_data_are_hashed_only_for_the_files_of_a_run(tmp_path, monkeypatch):
    hashed = []
    # A function of the package shadows the module.
    monkeypatch.setattr(sys.modules["keras_vitx.training.fit"], "fingerprint", hashed.append)
    kv.fit(small(), TRAIN, **SHORT)
    assert not hashed
    kv.fit(small(), TRAIN, output=tmp_path / "run", **SHORT)
    assert len(hashed) == 1
