import keras
import numpy as np
import pytest
from test_fit import TEST, TRAIN, VALIDATION, Batched, crossentropy, ready, small

import keras_vitx as kv

NAMES = ("left", "right", "up", "down", "near", "far", "on", "off")


def classes_of(count=40, classes=8, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return random.integers(0, 255, (count, 4, 4, 1), "uint8"), labels


def named(images, labels, names, path):
    np.savez(path, x_train=images, y_train=labels, class_names=np.array(names))
    return path


def test_the_model_stays_as_it_is():
    model = small()
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    model.fit(ready(TRAIN[0]), np.eye(2)[TRAIN[1]], verbose=0)
    optimizer, steps, state = model.optimizer, int(model.optimizer.iterations), model.get_weights()
    before = model.evaluate(ready(TRAIN[0]), np.eye(2)[TRAIN[1]], verbose=0, return_dict=True)
    kv.evaluate(model, (TRAIN, VALIDATION))
    assert model.optimizer is optimizer
    assert int(optimizer.iterations) == steps
    assert model.loss == "mse"
    for one, other in zip(model.get_weights(), state, strict=True):
        np.testing.assert_array_equal(one, other)
    after = model.evaluate(ready(TRAIN[0]), np.eye(2)[TRAIN[1]], verbose=0, return_dict=True)
    assert after == before


def test_parts():
    model, source = small(), (TRAIN, VALIDATION, TEST)
    for part, name, (images, labels) in (
        (None, "test", TEST),
        ("validation", "validation", VALIDATION),
        ("train", "train", TRAIN),
    ):
        found = kv.evaluate(model, source, part, batch_size=5)
        assert (found["part"], found["images"]) == (name, len(labels))
        assert found["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert found["accuracy"] == pytest.approx(hits.mean())
    assert set(found) == {"part", "images", "loss", "accuracy"}
    assert kv.evaluate(model, TRAIN)["part"] == "validation"
    assert kv.evaluate(model, TRAIN, validation_split=0)["images"] == len(TRAIN[1])
    with pytest.raises(ValueError, match="'test'"):
        kv.evaluate(model, TRAIN, "test")
    with pytest.raises(ValueError, match="`part`"):
        kv.evaluate(model, Batched(*TRAIN), "test")


def test_names_of_the_same_images_after_fit():
    """`evaluate` reproduces the validation results reported by `fit`."""
    model = small()
    history = kv.fit(
        model,
        TRAIN,
        epochs=2,
        batch_size=16,
        warmup_epochs=0,
        augmentation=None,
        seed=5,
        validation_split=0.25,
        verbose=0,
    ).history
    found = kv.evaluate(model, TRAIN, validation_split=0.25, seed=5)
    best = int(np.argmax(history["val_accuracy"]))
    assert found["images"] == 12
    assert found["loss"] == pytest.approx(history["val_loss"][best], rel=1e-5)


def test_labels_go_by_name(tmp_path):
    """With the classes in another order, or only some of them, the results are the same."""
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    expected = kv.evaluate(model, (images, labels), validation_split=0)
    assert set(expected) == {"part", "images", "loss", "accuracy", "top_5_accuracy"}
    outputs = model.predict(ready(images), verbose=0)
    among = (np.argsort(-outputs, -1)[:, :5] == labels[:, None]).any(-1)
    assert expected["top_5_accuracy"] == pytest.approx(among.mean())

    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    path = named(images, np.argsort(order)[labels], [NAMES[i] for i in order], tmp_path / "a.npz")
    assert kv.evaluate(model, path, validation_split=0) == pytest.approx(expected)

    some = labels < 3
    path = named(images[some], 2 - labels[some], NAMES[2::-1], tmp_path / "b.npz")
    found = kv.evaluate(model, path, validation_split=0)
    assert found["loss"] == pytest.approx(crossentropy(model, images[some], labels[some]), rel=1e-4)

    path = named(images[some], labels[some], ("left", "right", "in"), tmp_path / "c.npz")
    with pytest.raises(ValueError, match="know: in"):
        kv.evaluate(model, path, validation_split=0)


def test_several_labels_and_numbers():
    images, labels = TRAIN
    several = np.stack([labels, 1 - labels, np.zeros_like(labels)], 1)
    model = small(3, "sigmoid")
    found = kv.evaluate(model, (images, several), validation_split=0)
    outputs = model.predict(ready(images), verbose=0)
    assert found["binary_accuracy"] == pytest.approx(((outputs > 0.5) == several).mean())
    values = images[..., 0].mean((1, 2)) / 255
    model = small(1, None)
    found = kv.evaluate(model, (images, values), validation_split=0)
    error = model.predict(ready(images), verbose=0)[:, 0] - values
    assert found["loss"] == pytest.approx((error**2).mean(), rel=1e-4)
    assert found["mean_absolute_error"] == pytest.approx(np.abs(error).mean(), rel=1e-4)
