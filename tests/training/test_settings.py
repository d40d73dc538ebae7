"""What `fit` does with settings and arguments that mislead easily."""

import inspect
import logging

import keras
import numpy as np
import pytest
from harness import array, tiny
from test_fit import SHORT, TRAIN, VALIDATION, Batched, images_of, ready, small

import keras_vitx as kv
from keras_vitx.training import Recipe, recipes
from keras_vitx.training.callbacks import Clock
from keras_vitx.training.compiling import class_weights

pytestmark = pytest.mark.backend_free
NAMED = ("left", "right")


def named(path, images, labels):
    np.savez(path, x_train=images, y_train=labels, class_names=np.array(NAMED))
    return path


def test_fit_is_short():
    lines = inspect.getsource(kv.training.fit)
    named = [p for p in inspect.signature(kv.fit).parameters.values() if p.name != "settings"]
    assert len(lines.splitlines()) <= 100
    assert len(named) <= 14


def test_arguments_that_compile_has():
    for name in ("optimizer", "loss", "metrics"):
        with pytest.raises(ValueError, match=rf"`{name}` .* `model\.compile"):
            kv.fit(small(), TRAIN, **{name: "sgd"}, **SHORT)


def test_an_optimizer_of_ones_own_alone():
    model = small()
    model.compile(keras.optimizers.SGD(0.1))
    history = kv.fit(model, (TRAIN, VALIDATION), **SHORT).history
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert {"loss", "accuracy", "val_loss"} <= set(history)


def test_weights_of_classes_by_name(tmp_path):
    path = named(tmp_path / "a.npz", *TRAIN)
    for weights in ({"left": 0.0, "right": 0.0}, {0: 0, 1: 0}):
        history = kv.fit(small(), path, class_weight=weights, **SHORT).history
        assert history["loss"] == [0, 0]
    assert class_weights({"b": 2}, ("a", "b"), 2) == {1: 2.0}
    assert class_weights({np.int64(1): 2}, None, 2) == {1: 2.0}
    for wrong in ({"up": 1.0}, {2: 1.0}, {-1: 1.0}, {0.5: 1.0}):
        with pytest.raises(ValueError, match="`class_weight`"):
            kv.fit(small(), path, class_weight=wrong, **SHORT)


def test_few_images_have_enough_updates(caplog):
    caplog.set_level(logging.INFO)
    recipe = recipes.get("finetune")
    least = recipe.min_updates
    assert recipe.for_images(100_000) is recipe
    for images in (20, 108, 500):
        fitted = recipe.for_images(images)
        assert fitted.epochs * max(images // fitted.batch_size, 1) >= least
        assert 8 <= fitted.batch_size <= 64
        # Of the settings that the user chose, none changes.
        assert recipe.for_images(images, {"epochs", "batch_size"}) == recipe
    model = small()
    kv.fit(model, TRAIN, augmentation=None, verbose=0)
    updates = int(array(model.optimizer.iterations))
    assert updates >= least
    assert f"{updates} updates" in caplog.text
    kv.fit(model, TRAIN, epochs=2, batch_size=16, verbose=0)
    assert "4 updates: 2 epochs of 2 batches, 16 images per update" in caplog.text


def test_the_rate_is_that_of_the_batch_that_is_used():
    recipe = Recipe("mine").but(base_batch_size=512, batch_size=1024, epochs=1, warmup_epochs=0)
    model = small()
    kv.fit(model, TRAIN, recipe, augmentation=None, verbose=0)
    rate = model.optimizer.get_config()["learning_rate"]["config"]["learning_rate"]
    assert rate == pytest.approx(5e-4 * 44 / 512)


def test_batch_size_is_the_images_of_an_update(caplog):
    caplog.set_level(logging.INFO)
    model = small()
    kv.fit(model, TRAIN, accumulate_steps=2, validation_split=0, **SHORT)
    assert "6 updates: 2 epochs of 6 batches, 16 images per update" in caplog.text
    assert model.optimizer.gradient_accumulation_steps == 2


def test_one_output_is_the_probability_of_the_second_class():
    model = small(1, "sigmoid")
    model.class_names = NAMED
    (found,) = kv.decode_predictions(np.array([[0.63]]), model=model)
    assert [(name, round(p, 2)) for _, name, p in found] == [("right", 0.63), ("left", 0.37)]


def test_two_trainings_in_one_folder(tmp_path):
    class Second(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with pytest.raises(ValueError, match=r"in use"):
                kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)
            Second.asked = True

    kv.fit(small(), TRAIN, output=tmp_path, callbacks=[Second()], **SHORT)
    assert Second.asked
    kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)


def test_generators_and_raw_pixels(caplog):
    with pytest.raises(ValueError, match="must not be a generator"):
        kv.fit(small(), (batch for batch in Batched(*TRAIN)), **SHORT)
    with pytest.raises(
        ValueError, match=r"must not be a generator.*Give a `keras.utils.PyDataset`"
    ):
        kv.evaluate(small(), (batch for batch in Batched(*TRAIN)))
    kv.fit(small(), Batched(*TRAIN), **SHORT)
    assert "pixels" not in caplog.text

    class Raw(Batched):
        def __getitem__(self, index):
            images, labels = super().__getitem__(index)
            return (images + 1) * 127.5, labels

    kv.fit(small(), Raw(*TRAIN), **SHORT)
    assert "look like pixels in 0..255" in caplog.text


def test_callbacks_that_set_the_rate():
    plateau = keras.callbacks.ReduceLROnPlateau()
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau.*model\.compile"):
        kv.fit(small(), TRAIN, callbacks=[plateau], **SHORT)
    model = small()
    model.compile(keras.optimizers.SGD(0.1))
    kv.fit(model, TRAIN, callbacks=[plateau], **SHORT)


def test_names_of_few_classes_are_not_cut(tmp_path):
    with pytest.raises(ValueError, match=r"2 classes \(left, right\)\. .*classes=2"):
        kv.fit(small(3), named(tmp_path / "a.npz", *TRAIN), **SHORT)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0), [0.8, 0.5]),
        (0.25, [0.25, 0.25]),
    ],
)
def test_the_history_has_the_rate_of_the_last_update(rate, expected):
    model = small()
    model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    clock, rates = Clock(16), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(clock.row["learning_rate"])
    )
    model.fit(Batched(*TRAIN), epochs=2, callbacks=[clock, note], verbose=0)
    assert int(array(model.optimizer.iterations)) == 6
    assert rates == pytest.approx(expected)


def test_the_head_first():
    keras.utils.set_random_seed(0)
    model = kv.ViT(8, 2, 2, patch_size=2, input_shape=(4, 4, 1), classes=2)
    body, head = model.get_layer("blocks_0"), model.layers[-1]
    seen = []

    class Note(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append([array(body.variables[0]).copy(), array(head.kernel).copy()])

    note = Note()
    note.on_train_begin()
    kv.fit(model, TRAIN, freeze_epochs=2, callbacks=[note], **SHORT)
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert np.abs(seen[0][1] - seen[1][1]).max() > 1e-4
    assert np.abs(array(body.variables[0]) - seen[1][0]).max() > 1e-6
    assert all(layer.trainable for layer in model.layers)


def test_early_stopping():
    model = small()
    images, labels = images_of(40, 3)
    source = TRAIN, (images, 1 - labels)  # It gets worse and worse.
    changes = {**SHORT, "epochs": 20, "patience": 2}
    history = kv.fit(model, source, **changes).history
    assert len(history["loss"]) < 20
    with pytest.raises(ValueError, match="`patience`"):
        kv.fit(model, source, Recipe("mine", result="last"), **changes)


def test_a_learning_rate_is_found(tmp_path):
    model = small()
    before = model.get_weights()
    rate = kv.training.find_learning_rate(
        model, TRAIN, batch_size=16, augmentation=None, steps=60, path=tmp_path / "rates.png"
    )
    assert 1e-4 < rate < 1
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "rates.png").stat().st_size > 1000
    outputs = model.predict(ready(TRAIN[0]), verbose=0)
    assert np.isfinite(outputs).all()
    with pytest.raises(ValueError, match="`low`"):
        kv.training.find_learning_rate(model, TRAIN, low=1.0, high=0.1)


def test_ages_are_regression():
    images = TRAIN[0]
    ages = np.where(np.arange(len(images)) % 2, 23.0, 41.0)
    history = kv.fit(small(classes=1, activation=None), (images, ages), **SHORT)
    assert "mean_absolute_error" in history.history
    with pytest.raises(ValueError, match="classes=1 and classifier_activation=None"):
        kv.fit(small(), (images, ages), **SHORT)


def test_messages_say_the_next_step(tmp_path):
    whole = small()
    cut = keras.Model(whole.inputs, keras.layers.Dense(2)(whole.layers[-2].output))
    features = tiny(kv.ViT, num_heads=2, include_top=False)()
    (tmp_path / "x.foo").write_text("")
    wrong = (
        (cut, TRAIN, r"`model.preprocessing = whole.preprocessing`"),
        (features, TRAIN, r"Put pooling and a `keras.layers.Dense\(classes\)` on top"),
        (whole, tmp_path / "x.foo", "is not a folder, an .npz or a .csv file. Expected"),
        (whole, "x.foo", "'x.foo' does not exist. Expected"),
    )
    for model, source, message in wrong:
        with pytest.raises(ValueError, match=message):
            kv.fit(model, source, **SHORT)
        with pytest.raises(ValueError, match=message):
            kv.evaluate(model, source)
    with pytest.raises(FloatingPointError, match=r"Next, .*try a lower `learning_rate`"):
        kv.fit(small(), TRAIN, **{**SHORT, "learning_rate": 1e30, "clip_norm": None})
