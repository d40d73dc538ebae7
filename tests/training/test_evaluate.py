import keras
import numpy as np
import pytest
from PIL import Image
from test_fit import TEST, TRAIN, VALIDATION, Batched, best_of, crossentropy, ready, small

import keras_vitx as kv
from keras_vitx.outputs import outputs_of, task_of
from keras_vitx.training.scores import predictions_of

NAMES = ("left", "right", "up", "down", "near", "far", "on", "off")


def classes_of(count=40, classes=8, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return random.integers(0, 255, (count, 4, 4, 1), "uint8"), labels


def named(images, labels, names, path):
    np.savez(path, x_train=images, y_train=labels, class_names=np.array(names))
    return path


@pytest.mark.backend_free
def test_the_model_stays_as_it_is():
    model, arrays = small(), (ready(TRAIN[0]), np.eye(2)[TRAIN[1]])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    model.fit(*arrays, verbose=0)
    before = model.evaluate(*arrays, verbose=0), model.optimizer, model.loss, model.get_weights()
    kv.evaluate(model, (TRAIN, VALIDATION))
    after = model.evaluate(*arrays, verbose=0), model.optimizer, model.loss, model.get_weights()
    assert after[:3] == before[:3]
    for one, other in zip(after[3], before[3], strict=True):
        np.testing.assert_array_equal(one, other)


def test_splits():
    model, source = small(), (TRAIN, VALIDATION, TEST)
    for split, name, (images, labels) in (
        (None, "test", TEST),
        ("validation", "validation", VALIDATION),
        ("train", "train", TRAIN),
    ):
        found = kv.evaluate(model, source, split, batch_size=5)
        assert (found["split"], found["images"]) == (name, len(labels))
        assert found["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        hits = model.predict(ready(images), verbose=0).argmax(-1) == labels
        assert found["accuracy"] == pytest.approx(hits.mean())
    assert set(found) == {"split", "images", "images_per_second", "loss", "accuracy"}
    # All that is given is measured, if it has no splits; the first and the last batch aren't timed.
    whole = kv.evaluate(model, TRAIN, batch_size=16)
    assert (whole["split"], whole["images"]) == ("train", len(TRAIN[1]))
    assert whole["images_per_second"] > 0
    assert kv.evaluate(model, Batched(*TRAIN, size=30))["images_per_second"] is None
    for source, message in ((TRAIN, "'test'"), (Batched(*TRAIN), "`split`")):
        with pytest.raises(ValueError, match=message):
            kv.evaluate(model, source, "test")


@pytest.mark.backend_free
@pytest.mark.parametrize("by_name", [False, True])
def test_the_images_that_a_run_held_out(by_name, tmp_path):
    """`evaluate` gives the validation results of `fit`, by the same fraction or by the names."""
    model = small()
    split = {"validation_split": 0.25, "seed": 5}
    settings = {"epochs": 2, "batch_size": 16, "warmup_epochs": 0, "augmentation": None}
    history = kv.fit(model, TRAIN, output=tmp_path, verbose=0, **settings, **split).history
    names = kv.training.held_out(tmp_path)
    found = kv.evaluate(model, TRAIN, **({"validation_split": names} if by_name else split))
    assert found["images"] == len(names) == 12
    assert found["loss"] == pytest.approx(history["val_loss"][best_of(history)], rel=1e-5)


@pytest.mark.backend_free
def test_labels_go_by_name(tmp_path):
    """With the classes in another order, or only some of them, the results are the same."""
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    expected = kv.evaluate(model, (images, labels), validation_split=0)
    names = {"split", "images", "images_per_second", "loss", "accuracy", "top_5_accuracy"}
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
    with pytest.raises(ValueError, match="Received: in"):
        kv.evaluate(model, path, validation_split=0)


@pytest.mark.backend_free
def test_names_of_one_output(tmp_path):
    images, labels = TRAIN
    model = small(1, "sigmoid")
    right = labels == (model.predict(ready(images), verbose=0)[:, 0] > 0.5)
    model.class_names = ("left", "right")
    for names, given in ((("left", "right"), labels), (("right", "left"), 1 - labels)):
        path = named(images, given, names, tmp_path / f"{names[0]}.npz")
        found = kv.evaluate(model, path, validation_split=0, confusion=True)
        assert found["accuracy"] == pytest.approx(right.mean())
        assert found["class_names"] == names
        assert np.trace(found["confusion"]) == right.sum()


@pytest.mark.backend_free
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


@pytest.mark.backend_free
def test_confusion(tmp_path):
    """Counts of the labels' classes, whatever the order of the outputs."""
    names = ("left", "right", "up")
    model = small(3)
    images, labels = classes_of(30, 3)
    outputs = model.predict(ready(images), verbose=0).argmax(-1)
    expected = np.zeros((3, 3), "int64")
    np.add.at(expected, (labels, outputs), 1)
    for given in (labels, np.eye(3, dtype="float32")[labels]):
        found = kv.evaluate(model, Batched(images, given, size=8), confusion=True)
        np.testing.assert_array_equal(found["confusion"], expected)
    assert found["class_names"] == ("0", "1", "2")
    assert found["class_accuracy"] == pytest.approx(np.mean(np.diag(expected) / 10))

    model.class_names = names
    path = named(images[labels != 1], labels[labels != 1] // 2, ("left", "up"), tmp_path / "s.npz")
    found = kv.evaluate(model, path, "train", validation_split=0, confusion=True)
    assert found["class_names"] == ("left", "up", "right")
    order = [0, 2, 1]
    np.testing.assert_array_equal(found["confusion"][:2], expected[np.ix_([0, 2], order)])
    assert not found["confusion"][2].any()

    rows = found["per_class"]
    assert [(row["class"], row["images"]) for row in rows] == [("left", 10), ("up", 10)]
    for row, counts, column in zip(rows, found["confusion"], found["confusion"].T, strict=False):
        index = found["class_names"].index(row["class"])
        assert row["accuracy"] == counts[index] / 10
        assert row["precision"] == (counts[index] / column.sum() if column.any() else None)
        wrong = np.delete(counts, index)
        others = np.delete(found["class_names"], index)
        assert row["most_confused_with"] == (others[wrong.argmax()] if wrong.any() else None)


@pytest.mark.backend_free
def test_scores(tmp_path):
    """As scikit-learn computes them, from softmax, logits and one sigmoid output."""
    from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

    images, labels = classes_of(30, 3)
    one_hot = np.eye(3, dtype="float32")[labels]
    for activation, given in (("softmax", labels), ("softmax", one_hot), (None, labels)):
        model = small(3, activation)
        p = model.predict(ready(images), verbose=0)
        p = p if activation else np.exp(p) / np.exp(p).sum(-1, keepdims=True)
        found = kv.evaluate(
            model, Batched(images, given, size=8), scores=True, wrong=tmp_path / "wrong.png"
        )
        scores = precision_recall_fscore_support(
            labels, p.argmax(-1), average="macro", zero_division=0
        )
        for name, score in zip(("precision", "recall", "f1"), scores, strict=False):
            assert found[name] == pytest.approx(score, abs=1e-5), name
        auc = roc_auc_score(labels, p, multi_class="ovr")
        assert found["auc"] == pytest.approx(auc, abs=1e-5)
        assert (tmp_path / "wrong.png").stat().st_size > 1000

    images, labels = TRAIN
    several = np.stack([labels, np.arange(48) % 3 == 0], 1).astype("float32")
    for given, model in ((labels, small(1, "sigmoid")), (several, small(2, "sigmoid"))):
        p = model.predict(ready(images), verbose=0)
        found = kv.evaluate(model, Batched(images, given), scores=True)
        assert found["auc"] == pytest.approx(roc_auc_score(given, p), abs=1e-5)
    scores = precision_recall_fscore_support(several, p > 0.5, average="macro", zero_division=0)
    assert found["recall"] == pytest.approx(scores[1])


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("option", "message"),
    (
        ({"confusion": True}, "one class per image"),
        ({"scores": True}, "regression"),
        ({"wrong": "wrong.png"}, "regression"),
    ),
)
def test_regression_has_no_classes(option, message):
    images, labels = TRAIN
    with pytest.raises(ValueError, match=message):
        kv.evaluate(small(1, None), (images, labels / 7), **option)


@pytest.mark.backend_free
def test_the_worst_images_are_found():
    images, labels = classes_of(50, 3)
    model = small(3)
    p = model.predict(ready(images), verbose=0)[np.arange(50), labels]
    batches = Batched(images, labels, size=8)
    every, worst = predictions_of(model, batches, task_of(outputs_of(model), labels))
    assert len(every[0]) == 50
    order = np.argsort(p, kind="stable")[:16]
    np.testing.assert_allclose(worst[2], ready(images)[order])


def files(directory, images, labels):
    """Image files of two classes, and their paths in order."""
    paths = []
    for index, image in enumerate(images):
        paths.append(directory / f"class {labels[index]}" / f"{index:02}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(paths[-1])
    return paths


def test_a_batch_of_which_no_image_can_be_read_counts_as_none(tmp_path):
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (12, 4, 4, 1), "uint8"), np.repeat([0, 1], 6)
    for split in ("train", "val"):
        paths = files(tmp_path / split, images, labels)
    source = kv.data.load_dataset(tmp_path)
    for path in paths[4:8]:
        path.write_bytes(b"")
    kept, model = np.delete(np.arange(12), range(4, 8)), small()
    expected = crossentropy(model, images[kept], labels[kept])
    for given in (source, kv.data.pipelines(source, model, 4)):
        options = {"batch_size": 4, "confusion": True, "per_image": tmp_path / "rows.csv"}
        found = kv.evaluate(model, given, "validation", **options)
        assert found["images"] == found["confusion"].sum() == 8
        rows = (tmp_path / "rows.csv").read_text().splitlines()[1:]
        names = [path.relative_to(tmp_path).as_posix() for path in np.array(paths)[kept]]
        assert sorted(row.split(",")[0] for row in rows) == names
        assert found["loss"] == pytest.approx(expected, rel=1e-4)
        still = {"epochs": 1, "batch_size": 4, "warmup_epochs": 0, "learning_rate": 1e-6}
        history = kv.fit(model, given, **still, verbose=0).history
        assert history["val_loss"] == [pytest.approx(expected, rel=1e-3)]
    with pytest.raises(OSError, match=r"04\.png"):
        kv.evaluate(model, kv.data.pipelines(source, model, 4, strict=True), "validation")
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(OSError, match=r"no image .* can be decoded: .*00\.png"):
        kv.evaluate(model, source, "validation", batch_size=4)


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
    batches = Batched(images, labels)
    for own in (batches, (batches, batches), kv.data.Pipelines(batches)):
        with pytest.raises(ValueError, match="`crop_ratio`"):
            kv.evaluate(model, own, crop_ratio=0.5)
