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
    assert set(found) == {"part", "images", "images_per_second", "loss", "accuracy"}
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
    names = {"part", "images", "images_per_second", "loss", "accuracy", "top_5_accuracy"}
    assert set(expected) == names
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


def test_confusion(tmp_path):
    """Counts of the labels' classes, whatever the order of the outputs."""
    names = ("left", "right", "up")
    model = small(3)
    images, labels = classes_of(30, 3)
    outputs = model.predict(ready(images), verbose=0).argmax(-1)
    expected = np.zeros((3, 3), "int64")
    np.add.at(expected, (labels, outputs), 1)
    found = kv.evaluate(model, Batched(images, labels, size=8), confusion=True)
    np.testing.assert_array_equal(found["confusion"], expected)
    assert found["class_names"] == ("0", "1", "2")
    assert found["class_accuracy"] == pytest.approx(np.mean(np.diag(expected) / 10))
    one_hot = np.eye(3, dtype="float32")[labels]
    soft = kv.evaluate(model, Batched(images, one_hot, size=8), confusion=True)
    np.testing.assert_array_equal(soft["confusion"], expected)

    model.class_names = names
    path = named(images[labels != 1], labels[labels != 1] // 2, ("left", "up"), tmp_path / "s.npz")
    found = kv.evaluate(model, path, "train", validation_split=0, confusion=True)
    assert found["class_names"] == ("left", "up", "right")
    order = [0, 2, 1]
    np.testing.assert_array_equal(found["confusion"][:2], expected[np.ix_([0, 2], order)])
    assert not found["confusion"][2].any()

    rows = kv.training.per_class(found["confusion"], found["class_names"])
    assert [(row["class"], row["images"]) for row in rows] == [("left", 10), ("up", 10)]
    assert rows[0]["accuracy"] == expected[0, 0] / 10
    kv.training.write_per_class(found["confusion"], found["class_names"], tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0] == "class,images,accuracy,precision,taken for"
    assert lines[1].startswith("left,10,")
    with pytest.raises(ValueError, match="one class per image"):
        kv.evaluate(small(1, None), (images, labels / 7), confusion=True)


def test_confusion_of_one_output():
    model = small(1, "sigmoid")
    images, labels = TRAIN
    found = kv.evaluate(model, Batched(images, labels), confusion=True)
    hits = (model.predict(ready(images), verbose=0)[:, 0] > 0.5) == labels
    assert found["confusion"].sum() == 48
    assert np.trace(found["confusion"]) == hits.sum()


@pytest.mark.backend_free
def test_rows_per_class():
    matrix = np.array([[3, 1, 0], [0, 0, 0], [0, 0, 2]])
    assert kv.training.per_class(matrix, ("a", "b", "c")) == [
        {"class": "a", "images": 4, "accuracy": 0.75, "precision": 1.0, "taken for": "b"},
        {"class": "c", "images": 2, "accuracy": 1.0, "precision": 1.0, "taken for": None},
    ]


@pytest.mark.backend_free
def test_crop_ratio():
    model, (images, labels) = small(), TRAIN
    before = model.preprocessing
    found = kv.evaluate(model, (TRAIN, VALIDATION), "train", crop_ratio=0.5)
    model.preprocessing = {**before, "crop_ratio": 0.5}
    expected = kv.evaluate(model, (TRAIN, VALIDATION), "train")
    model.preprocessing = before
    assert found["loss"] == expected["loss"]
    assert found["loss"] != kv.evaluate(model, (TRAIN, VALIDATION), "train")["loss"]
    with pytest.raises(ValueError, match="`crop_ratio`"):
        kv.evaluate(model, Batched(images, labels), crop_ratio=0.5)


@pytest.mark.backend_free
def test_images_per_second():
    model = small()
    assert kv.evaluate(model, Batched(*TRAIN, size=30))["images_per_second"] is None
    assert kv.evaluate(model, Batched(*TRAIN, size=8))["images_per_second"] > 0
