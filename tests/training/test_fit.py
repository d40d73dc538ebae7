import csv
import json

import keras
import numpy as np
import pytest
from harness import array, close

import keras_vitx as kv
from keras_vitx.data import open_source
from keras_vitx.training import Recipe
from keras_vitx.training.fit import KeepBest


def tiny(classes=10, **changes):
    keras.utils.set_random_seed(0)
    return kv.CaiT(
        **{
            "dim": 16,
            "depth": 2,
            "num_heads": 2,
            "class_depth": 1,
            "mlp_ratio": 2.0,
            "layer_scale": 0.5,
            "patch_size": 8,
            "input_shape": (16, 16, 1),
            "classes": classes,
            **changes,
        }
    )


def subset(count=64):
    """Some images of the shipped sample."""
    source = open_source("fashion_mnist")
    return tuple(
        (np.asarray(part.images)[:count], np.asarray(part.labels)[:count])
        for part in (source.train, source.validation)
    )


def separable(count=192):
    """Two classes: bright on the left, bright on the right."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = random.integers(0, 60, (count, 16, 16, 1))
    images[labels == 0, :, :8] += 150
    images[labels == 1, :, 8:] += 150
    return images.astype("uint8"), labels


SHORT = {"epochs": 2, "batch_size": 16, "warmup_epochs": 1, "verbose": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "new" / "folder"
    model = tiny(depth=1)
    history = kv.fit(model, subset(), output=output, learning_rate=5e-3, seed=3, **SHORT)
    return model, history.history, output


def test_files_of_a_run(run):
    _, history, output = run
    assert sorted(path.name for path in output.iterdir()) == [
        "best.keras",
        "history.csv",
        "run.json",
    ]
    with (output / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    for key, column in history.items():
        assert [float(row[key]) for row in rows] == pytest.approx(column, rel=1e-6)
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(history)

    facts = json.loads((output / "run.json").read_text())
    best = int(np.argmax(history["val_accuracy"]))
    assert facts["best_epoch"] == best + 1
    assert facts["validation_accuracy"] == pytest.approx(history["val_accuracy"][best])
    assert facts["recipe"]["epochs"] == 2
    assert facts["recipe"]["learning_rate"] == 5e-3
    assert (facts["model"], facts["seed"], facts["precision"]) == ("CaiT", 3, None)
    assert (facts["train_images"], facts["validation_images"]) == (64, 64)
    assert facts["backend"] == keras.backend.backend()


def test_the_best_weights_are_kept(run):
    model, history, output = run
    best = keras.saving.load_model(output / "best.keras")
    for one, other in zip(best.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(one.value), array(other.value), err_msg=one.path)
    assert model.class_names is not None
    assert list(best.class_names) == list(model.class_names)
    source = kv.data.pipelines(subset(), model, 16)
    _, accuracy = model.evaluate(source.validation, verbose=0)
    assert accuracy == pytest.approx(max(history["val_accuracy"]), abs=1e-6)


def test_a_folder_that_holds_a_run_is_refused(run):
    _, _, output = run
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    with pytest.raises(ValueError, match="already holds") as error:
        kv.fit(tiny(), subset(), output=output, **SHORT)
    assert str(output) in str(error.value)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_weights_of_an_earlier_epoch_come_back(tmp_path):
    model = tiny(depth=1)
    keep = KeepBest(tmp_path)
    keep.set_model(model)
    weights = []
    for epoch, accuracy in enumerate((0.2, 0.8, 0.5, 0.8)):
        model.layers[-1].bias.assign(np.full(10, epoch, "float32"))
        weights.append(model.get_weights())
        keep.on_epoch_end(epoch, {"val_accuracy": accuracy})
    keep.on_train_end()
    assert keep.epoch == 2
    np.testing.assert_array_equal(model.get_weights()[-1], weights[1][-1])
    saved = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_array_equal(saved.get_weights()[-1], weights[1][-1])


def test_it_learns():
    history = kv.fit(
        tiny(classes=2, depth=1),
        (separable(), separable(64)),
        # Flipped images would bear the other label.
        Recipe(name="mine", epochs=4, batch_size=16, learning_rate=1e-2, augmentation=None),
        verbose=0,
    )
    assert max(history.history["val_accuracy"]) > 0.9


def test_a_seed_repeats_a_run(run):
    again = kv.fit(tiny(depth=1), subset(), learning_rate=5e-3, seed=3, **SHORT).history
    assert again.keys() == run[1].keys()
    for key, column in again.items():
        close(column, run[1][key], 1e-5, key)


def test_half_precision_and_logits(run):
    model = tiny(depth=1, classifier_activation=None)
    history = kv.fit(
        model,
        subset(32),
        precision="mixed_bfloat16",
        **{**SHORT, "epochs": 1, "warmup_epochs": 0},
    )
    assert np.isfinite(history.history["loss"]).all()
    assert model.get_layer("blocks_0").compute_dtype == "bfloat16"
    assert model.loss.from_logits
    assert not run[0].loss.from_logits


def test_data_that_do_not_fit():
    with pytest.raises(ValueError, match="class"):
        kv.fit(tiny(classes=3, depth=1), subset(), **SHORT)
