"""What `fit` does with settings and arguments that mislead easily."""

import logging

import keras
import numpy as np
import pytest
from harness import array, tiny
from test_fit import (
    AGES,
    SHORT,
    TRAIN,
    Batched,
    Unlabeled,
    images_of,
    small,
)

import keras_vitx as kv
from keras_vitx.training import Recipe, recipes

pytestmark = pytest.mark.backend_free
NAMED = ("left", "right")
LOSS = "sparse_categorical_crossentropy"


@pytest.fixture
def named(tmp_path):
    """A file with names of classes."""
    path = tmp_path / "named.npz"
    np.savez(path, x_train=TRAIN[0], y_train=TRAIN[1], class_names=np.array(NAMED))
    return path


def test_wrong_arguments_say_the_next_step(named, tmp_path):
    whole = small()
    scaled = keras.Model(whole.inputs, whole(whole.inputs[0] * 2))
    features = tiny(kv.ViT)(include_top=False)
    (tmp_path / "x.foo").write_text("")
    images, labels = TRAIN
    plateau = keras.callbacks.ReduceLROnPlateau()
    for model, source, arguments, message in (
        (small(3), named, {}, r"2 classes \(left, right\)\. .*classes=2"),
        (small(), (images, labels + 1), {}, "classes=3"),
        (small(), (images, AGES), {}, "classes=1 and classifier_activation=None"),
        (small(activation="relu"), "no/such/folder", {}, "relu"),
        (small(), (images, np.ones((48, 2))), {}, "several labels"),
        (small(), Unlabeled(*TRAIN), {}, "images, labels"),
        (small(), (batch for batch in Batched(*TRAIN)), {}, "iterator.*Pass a `PyD"),
        (scaled, TRAIN, {}, r"`model.preprocessing = .* go into 'multiply"),
        (features, TRAIN, {}, r"Put pooling and a `keras.layers.Dense\(classes\)` on top"),
        (whole, tmp_path / "x.foo", {}, "is not a directory, an .npz or a .csv file. Expected"),
        (whole, "x.foo", {}, "'x.foo', which does not exist. Expected"),
        (whole, TRAIN, {"optimizer": "sgd"}, r"`optimizer` .* `model\.compile"),
        (whole, TRAIN, {"callbacks": [plateau]}, r"ReduceLROnPlateau.*model\.compile"),
        (whole, TRAIN, {"head": "best"}, "`head`.*'best'"),
        (whole, TRAIN, {"recipe": Recipe("mine", result="last"), "patience": 2}, "`patience`"),
        (whole, named, {"class_weight": {"up": 1.0}}, "`class_weight`.*'up'"),
        (whole, named, {"class_weight": {2: 1.0}}, "`class_weight`"),
        (whole, named, {"class_weight": {0.5: 1.0}}, "`class_weight`"),
        (whole, TRAIN, {"steps_per_epoch": 9}, "`steps_per_epoch` .* the 2 batches"),
        (whole, Batched(*TRAIN), {"steps_per_epoch": 9}, "`steps_per_epoch` .* the 3 batches"),
    ):
        with pytest.raises(ValueError, match=message):
            kv.fit(model, source, **SHORT, **arguments)


def test_a_callback_may_set_the_rate_of_ones_own_optimizer():
    model = small()
    model.compile(keras.optimizers.SGD(0.1))
    kv.fit(model, TRAIN, callbacks=[keras.callbacks.ReduceLROnPlateau()], **SHORT)


def test_weights_of_classes_by_name(named):
    for weights in ({"left": 0.0, "right": 0.0}, {0: 0, np.int64(1): 0}):
        history = kv.fit(small(), named, class_weight=weights, **SHORT).history
        assert history["loss"] == [0, 0]


def test_few_images_have_enough_updates(caplog):
    caplog.set_level(logging.INFO)
    recipe = recipes.get("finetune")
    assert recipe.for_images(100_000) is recipe
    for images in (20, 108, 500):
        fitted = recipe.for_images(images)
        assert fitted.epochs * max(images // fitted.batch_size, 1) >= recipe.min_updates
        assert 8 <= fitted.batch_size <= 64
        # Of the settings that the user chose, none changes.
        assert recipe.for_images(images, {"epochs", "batch_size"}) == recipe
    model = small()
    kv.fit(model, TRAIN, augmentation=None, verbose=0)
    updates = int(array(model.optimizer.iterations))
    assert updates >= recipe.min_updates and f"{updates} updates" in caplog.text
    kv.fit(model, TRAIN, epochs=2, batch_size=16, verbose=0)
    assert "4 updates: 2 epochs of 2 batches, 16 images per update" in caplog.text


def test_the_rate_is_that_of_the_batch_that_is_used():
    recipe = Recipe("mine").replace(base_batch_size=512, batch_size=1024, epochs=1, warmup_epochs=0)
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


def test_two_trainings_in_one_directory(tmp_path):
    class Second(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with pytest.raises(ValueError, match=r"in use"):
                kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)
            Second.asked = True

    kv.fit(small(), TRAIN, output=tmp_path, callbacks=[Second()], **SHORT)
    assert Second.asked
    kv.fit(small(), TRAIN, output=tmp_path, resume=True, **SHORT)


def test_raw_pixels(caplog):
    class Raw(Batched):
        def __getitem__(self, index):
            images, labels = super().__getitem__(index)
            return (images + 1) * 127.5, labels

    kv.fit(small(), Batched(*TRAIN), **SHORT)
    assert "pixels" not in caplog.text
    kv.fit(small(), Raw(*TRAIN), **SHORT)
    assert "look like pixels in 0..255" in caplog.text


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
    images, labels = images_of(40, 3)
    source = TRAIN, (images, 1 - labels)  # It gets worse and worse.
    history = kv.fit(small(), source, **{**SHORT, "epochs": 20, "patience": 2}).history
    assert len(history["loss"]) < 20


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
    model, fits = small(), Batched(images, np.minimum(late, 1))
    kv.fit(model, fits, **SHORT)
    assert kv.evaluate(model, fits)["images"] == 48
    for function in (kv.evaluate, lambda *given: kv.fit(*given, **SHORT)):
        # TensorFlow raises its own class of errors, with the same words.
        with pytest.raises(Exception, match=r"0\.\.1 .* Received: 0\.\.2"):
            function(small(), Batched(images, late))


@pytest.mark.parametrize("result", ("best", "last"))
def test_a_callback_that_restores_weights_has_the_last_word(result):
    model = small()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    images, labels = images_of(40, 3)
    source = TRAIN, (images, 1 - labels)  # It gets worse and worse.
    kv.fit(model, source, callbacks=[stop], result=result, **{**SHORT, "epochs": 4})
    assert stop.best_epoch == 0 and stop.best_weights is not None
    for one, other in zip(model.get_weights(), stop.best_weights, strict=True):
        np.testing.assert_array_equal(one, other)
