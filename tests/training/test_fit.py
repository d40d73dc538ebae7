import csv
import json

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


def best_of(history):
    """Return the index of the highest accuracy, and of the lowest loss among several."""
    return int(np.lexsort([history["val_loss"], -np.array(history["val_accuracy"])])[0])


def bytes_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def same_weights(path, model):
    best = keras.saving.load_model(path)
    for one, other in zip(best.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(one.value), array(other.value), err_msg=one.path)


def crossentropy(model, images, labels):
    outputs = model.predict(ready(images), verbose=0)
    return -np.log(outputs[np.arange(len(labels)), labels]).mean()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "new" / "folder"
    model = small()
    history = kv.fit(model, (TRAIN, VALIDATION, TEST), output=output, seed=3, **SHORT)
    return model, history, output


def test_files_of_a_run(run):
    _, history, output = run
    files = "best.keras checkpoints curves.png held_out.txt history.csv run.json"
    assert {path.name for path in output.iterdir()} == set(files.split())
    with (output / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for key, column in history.history.items():
        assert [float(row[key]) for row in rows] == pytest.approx(column, rel=1e-6)

    facts = json.loads((output / "run.json").read_text())
    best = best_of(history.history)
    assert (facts["best_epoch"], facts["monitor"]) == (best + 1, "val_accuracy")
    for name in ("loss", "accuracy"):
        assert facts["validation"][name] == pytest.approx(history.history[f"val_{name}"][best])
    assert facts["test"] == history.test
    assert facts["recipe"]["schedule"]["epochs"] == 2
    assert Recipe.read(output) == recipes.get("finetune").but(**CHANGES)
    assert (facts["model"], facts["seed"]) == ("small", 3)
    assert (facts["head"], facts["backend"]) == ("kept", BACKEND)
    assert [facts[f"{p}_images"] for p in ("train", "validation", "test")] == [48, 14, 22]
    assert "stopped" not in facts


def test_what_is_measured_on_what(run):
    """Per part, without label smoothing, with the weights of the best epoch."""
    model, history, _ = run
    best = best_of(history.history)
    for (images, labels), measured in (
        (VALIDATION, {n: history.history[f"val_{n}"][best] for n in ("loss", "accuracy")}),
        (TEST, history.test),
    ):
        assert measured["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert measured["accuracy"] == pytest.approx(hits.mean())


def test_the_best_weights_are_kept(run):
    model, _, output = run
    same_weights(output / "best.keras", model)
    assert model.class_names == ("0", "1")


def test_a_folder_that_holds_a_run_is_refused(run):
    _, _, output = run
    before = bytes_of(output)
    with pytest.raises(ValueError, match=f"already holds .*{output}"):
        kv.fit(small(), TRAIN, output=output, **SHORT)
    assert bytes_of(output) == before


def test_a_seed_repeats_a_run(run):
    again = kv.fit(small(), (TRAIN, VALIDATION), seed=3, **SHORT).history
    for key, column in again.items():
        close(column, run[1].history[key], 1e-5, key)


def test_a_network_of_the_zoo_learns():
    """In half precision, with logits, on images held out from the training images."""
    keras.utils.set_random_seed(0)
    model = kv.CaiT(
        16, 2, 2, class_depth=1, layer_scale=0.5, patch_size=2, input_shape=(4, 4, 1), classes=2,
        classifier_activation=None,
    )  # fmt: skip
    # Told apart by brightness: positions start too small to be learned in so few steps.
    labels = np.arange(200) % 2
    images = np.random.default_rng(0).integers(0, 120, (200, 4, 4, 1))
    images += 100 * labels[:, None, None, None]
    recipe = Recipe("mine").but(epochs=3, batch_size=16, learning_rate=1e-2, augmentation=None)
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


@pytest.mark.parametrize("error", [FloatingPointError, KeyboardInterrupt, RuntimeError])
def test_a_run_that_stops_keeps_its_best_weights(error, tmp_path, caplog):
    model = small()
    with pytest.raises(error) as raised:
        stop = Interruption(1, error)
        kv.fit(model, (TRAIN, VALIDATION), output=tmp_path, callbacks=[stop], **SHORT)
    said = str(raised.value) if error is FloatingPointError else caplog.text
    assert "weights of epoch 1 (val_accuracy" in said
    if error is FloatingPointError:
        assert "step 1 of epoch 2" in said
    same_weights(tmp_path / "best.keras", model)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["stopped"].startswith(error.__name__)
    assert (facts["best_epoch"], facts["epochs_finished"]) == (1, 1)
    assert (tmp_path / "history.csv").read_text().count("\n") == 2
    # Training can continue from there.
    kv.fit(model, (TRAIN, VALIDATION), **SHORT)


def test_divergence_in_the_first_epoch(tmp_path):
    model = small()
    before = model.get_weights()
    with pytest.raises(FloatingPointError, match=r"step 1 of epoch 1.*before training"):
        stop = Interruption(0, FloatingPointError)
        kv.fit(model, TRAIN, output=tmp_path, callbacks=[stop], **SHORT)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {path.name for path in tmp_path.iterdir()} == {"held_out.txt", "run.json"}
    assert json.loads((tmp_path / "run.json").read_text())["best_epoch"] is None


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


def test_what_an_earlier_fit_compiled_is_not(run, caplog):
    for model in (run[0], keras.saving.load_model(run[2] / "best.keras")):
        model.preprocessing = PREPROCESSING
        old = model.optimizer
        kv.fit(model, (TRAIN, VALIDATION), **SHORT)
        assert model.optimizer is not old
    assert "is compiled" not in caplog.text


@pytest.mark.backend_free  # the losses are tested on each backend
def test_labels_of_all_forms():
    images, labels = TRAIN
    several = np.stack([labels, 1 - labels, np.zeros_like(labels)], 1)
    values = images[..., 0].mean((1, 2)) / 255
    for model, form, names in (
        (small(), np.eye(2)[labels], {"accuracy"}),
        (small(activation=None), np.eye(2)[labels] * 0.8 + 0.1, {"accuracy"}),
        (small(activation="sigmoid"), labels, {"accuracy"}),
        (small(1, "sigmoid"), labels, {"accuracy"}),
        (small(3, "sigmoid"), several, {"binary_accuracy"}),
        (small(1, None), values, {"mean_absolute_error"}),
    ):
        history = kv.fit(model, (images, form), **{**SHORT, "epochs": 1}).history
        expected = {"loss", *names}
        assert set(history) == expected | {f"val_{name}" for name in expected}
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
    assert json.loads((tmp_path / "run.json").read_text())["best_epoch"] == 2
    alone = kv.evaluate(model, batches)
    assert (alone["split"], alone["images"]) == ("batches", 48)
    assert alone["loss"] == pytest.approx(crossentropy(model, *TRAIN), rel=1e-4)


def test_pipelines_made_by_hand():
    batches = kv.data.Pipelines(train=Batched(*TRAIN), validation=Batched(*VALIDATION, size=5))
    model = small()
    history = kv.fit(model, batches, **SHORT).history
    expected = crossentropy(model, *VALIDATION)
    assert history["val_loss"][best_of(history)] == pytest.approx(expected, rel=1e-4)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow's own data")
def test_endless_batches():
    import tensorflow as tf

    images, labels = TRAIN
    endless = tf.data.Dataset.from_tensor_slices((ready(images), labels)).repeat().batch(16)
    with pytest.raises(ValueError, match="`steps_per_epoch`"):
        kv.fit(small(), endless, **SHORT)
    model = small()
    assert len(kv.fit(model, endless, steps_per_epoch=5, **SHORT).history["loss"]) == 2
    assert int(model.optimizer.iterations) == 10


def test_what_does_not_fit_is_an_error_at_once(tmp_path):
    images, labels = TRAIN
    path = tmp_path / "named.npz"
    np.savez(path, x_train=images, y_train=labels, class_names=["left", "right"])
    for model, source, message in (
        (small(3), path, "classes=2"),
        (small(), (images, labels + 1), "classes=3"),
        (small(activation="relu"), "no/such/folder", "relu"),
        (small(), (images, np.ones((48, 2))), "several labels"),
        (small(), Unlabelled(*TRAIN), "images, labels"),
    ):
        with pytest.raises(ValueError, match=message):
            kv.fit(model, source, **SHORT)


class Unlabelled(Batched):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


def test_mixed_images_and_a_fraction_of_them(tmp_path):
    options = SHORT | {"augmentation": "rand_augment", "mixing": kv.data.Mixing()}
    kv.fit(small(), (TRAIN, VALIDATION), fraction=0.5, output=tmp_path, **options | {"epochs": 1})
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["train_images"], run["validation_images"]) == (24, 14)
    assert run["recipe"]["mixing"]["cutmix"] == 1.0
    assert run["monitor"] == "val_accuracy"


def test_own_batches_are_neither_mixed_nor_cut(caplog):
    kv.fit(small(), Batched(*TRAIN), mixing=kv.data.Mixing(), **SHORT | {"epochs": 1})
    assert "without the augmentation and the mixing of the recipe" in caplog.text
    with pytest.raises(ValueError, match=r"`fraction` .* batches, which are used whole.* 0\.5"):
        kv.fit(small(), Batched(*TRAIN), fraction=0.5, **SHORT)
