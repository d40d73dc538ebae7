"""`kv.evaluate`: measures, classes by name, scores, and what it tells about single images."""

import csv

import keras
import numpy as np
import pytest
from PIL import Image
from training.fitting import (
    SHORT,
    TEST,
    TRAIN,
    VALIDATION,
    Batched,
    best_of,
    crossentropy,
    named,
    ready,
    same_weights,
    small,
    softmax,
)

import keras_vitx as kv

NAMES = ("left", "right", "up", "down", "near", "far", "on", "off")
backend_free = pytest.mark.backend_free


def classes_of(count=40, classes=8):
    images = np.random.default_rng(0).integers(0, 255, (count, 4, 4, 1), "uint8")
    return images, np.arange(count) % classes


def predict(model, images):
    return model.predict(ready(images), verbose=0)


def whole(model, source, **options):
    """Evaluate all images of a source."""
    return kv.evaluate(model, source, validation_split=0, **options)


def rows_of(path):
    return list(csv.DictReader(path.open()))


@backend_free
def test_the_model_stays_as_it_is():
    model, arrays = small(), (ready(TRAIN[0]), np.eye(2)[TRAIN[1]])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    model.fit(*arrays, verbose=0)
    before = model.evaluate(*arrays, verbose=0), model.optimizer, model.loss
    weights = model.get_weights()
    kv.evaluate(model, (TRAIN, VALIDATION))
    assert (model.evaluate(*arrays, verbose=0), model.optimizer, model.loss) == before
    same_weights(model, weights)


def test_the_measures_of_a_split():
    model, source = small(), (TRAIN, VALIDATION, TEST)
    for split, name, (images, labels) in (
        (None, "test", TEST),
        ("validation", "validation", VALIDATION),
        ("train", "train", TRAIN),
    ):
        found = kv.evaluate(model, source, split, batch_size=5)
        assert (found["split"], found["images"]) == (name, len(labels))
        assert found["loss"] == pytest.approx(crossentropy(model, images, labels), rel=1e-4)
        assert found["accuracy"] == pytest.approx(
            (predict(model, images).argmax(-1) == labels).mean()
        )
    # All that is given is measured, if it has no splits; the first and the last batch aren't timed.
    found = kv.evaluate(model, TRAIN, batch_size=16)
    assert (found["split"], found["images"]) == ("train", len(TRAIN[1]))
    assert found["images_per_second"] > 0
    assert kv.evaluate(model, Batched(*TRAIN, size=30))["images_per_second"] is None


@backend_free
@pytest.mark.parametrize("by_name", [False, True])
def test_the_images_that_a_run_held_out(by_name, tmp_path):
    """`evaluate` gives the validation results of `fit`, by the same fraction or by the names."""
    model, split = small(), {"validation_split": 0.25, "seed": 5}
    history = kv.fit(model, TRAIN, output=tmp_path, **SHORT, **split).history
    names = kv.training.held_out(tmp_path)
    found = kv.evaluate(model, TRAIN, **({"validation_split": names} if by_name else split))
    assert found["images"] == len(names) == 12
    assert found["loss"] == pytest.approx(history["val_loss"][best_of(history)], rel=1e-5)


@backend_free
def test_labels_go_by_name(tmp_path):
    """With the classes in another order, or only some of them, the results are the same."""
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    expected = whole(model, (images, labels))
    among = (np.argsort(-predict(model, images), -1)[:, :5] == labels[:, None]).any(-1)
    assert expected["top_5_accuracy"] == pytest.approx(among.mean())

    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    path, names = tmp_path / "names.npz", [NAMES[i] for i in order]
    found = whole(model, named(path, images, np.argsort(order)[labels], names))
    assert found | {"images_per_second": 0} == pytest.approx(expected | {"images_per_second": 0})
    some = labels < 3
    found = whole(model, named(path, images[some], 2 - labels[some], NAMES[2::-1]))
    assert found["loss"] == pytest.approx(crossentropy(model, images[some], labels[some]), rel=1e-4)
    with pytest.raises(ValueError, match="Received: in"):
        whole(model, named(path, images[some], labels[some], ("left", "right", "in")))


@backend_free
def test_confusion(tmp_path):
    """Counts of the labels' classes, whatever the order of the outputs."""
    model, (images, labels) = small(3), classes_of(30, 3)
    expected = np.zeros((3, 3), "int64")
    np.add.at(expected, (labels, predict(model, images).argmax(-1)), 1)
    for given in (labels, np.eye(3, dtype="float32")[labels]):
        found = kv.evaluate(model, Batched(images, given, size=8), confusion=True)
        np.testing.assert_array_equal(found["confusion"], expected)
    assert found["class_names"] == ("0", "1", "2")
    assert found["class_accuracy"] == pytest.approx(np.mean(np.diag(expected) / 10))

    model.class_names, some = NAMES[:3], labels != 1
    path = named(tmp_path / "s.npz", images[some], labels[some] // 2, ("left", "up"))
    found = whole(model, path, split="train", confusion=True)
    assert found["class_names"] == ("left", "up", "right")
    order = [0, 2, 1]
    np.testing.assert_array_equal(found["confusion"][:2], expected[np.ix_([0, 2], order)])
    assert not found["confusion"][2].any()

    for index, row in enumerate(found["per_class"]):
        counts, predicted = found["confusion"][index], found["confusion"][:, index].sum()
        wrong, others = np.delete(counts, index), np.delete(found["class_names"], index)
        assert row == {
            "class": ("left", "up")[index],
            "images": 10,
            "accuracy": counts[index] / 10,
            "precision": counts[index] / predicted if predicted else None,
            "most_confused_with": others[wrong.argmax()] if wrong.any() else None,
        }


@backend_free
@pytest.mark.parametrize("case", ("one-hot", "logits", "one sigmoid", "several labels"))
def test_scores_are_those_of_scikit_learn(case, tmp_path):
    from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

    (images, labels), several = classes_of(30, 3), np.eye(3, dtype="float32")[np.arange(30) % 3]
    if case == "several labels":
        several[::2, 1] = 1
    model, given = {
        "one-hot": (small(3), several),
        "logits": (small(3, None), labels),
        "one sigmoid": (small(1, "sigmoid"), labels % 2),
        "several labels": (small(3, "sigmoid"), several),
    }[case]
    p = predict(model, images)
    p = softmax(p) if case == "logits" else p
    batches, figure = Batched(images, given, size=8), tmp_path / "wrong.png"
    is_one_of = case in ("one-hot", "logits")
    found = kv.evaluate(model, batches, scores=True, wrong=figure if is_one_of else None)
    true, said = (labels, p.argmax(-1)) if is_one_of else (given, p > 0.5)
    auc = roc_auc_score(true, p, **({"multi_class": "ovr"} if is_one_of else {}))
    assert found["auc"] == pytest.approx(auc, abs=1e-5)
    if case != "one sigmoid":
        scores = precision_recall_fscore_support(true, said, average="macro", zero_division=0)
        for name, score in zip(("precision", "recall", "f1"), scores, strict=False):
            assert found[name] == pytest.approx(score, abs=1e-5), name
    assert not is_one_of or figure.stat().st_size > 1000


def files(directory, images, labels):
    """Image files of two classes, and their paths in order."""
    paths = []
    for index, image in enumerate(images):
        paths.append(directory / f"class {labels[index]}" / f"{index:02}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(paths[-1])
    return paths


def test_a_batch_of_which_no_image_can_be_read_counts_as_none(tmp_path):
    """The rows of the others have their files' names."""
    images, labels = classes_of(12, 1)[0], np.repeat([0, 1], 6)
    for split in ("train", "val"):
        paths = files(tmp_path / split, images, labels)
    source = kv.data.load_dataset(tmp_path)
    for path in paths[4:8]:
        path.write_bytes(b"")
    kept, model = np.delete(np.arange(12), range(4, 8)), small()
    model.class_names = ("class 0", "class 1")
    expected = crossentropy(model, images[kept], labels[kept])
    for given in (source, kv.data.pipelines(source, model, 4)):
        options = {"batch_size": 4, "confusion": True, "per_image": tmp_path / "rows.csv"}
        found = kv.evaluate(model, given, "validation", **options)
        assert found["images"] == found["confusion"].sum() == 8
        rows = rows_of(tmp_path / "rows.csv")
        names = [path.relative_to(tmp_path).as_posix() for path in np.array(paths)[kept]]
        assert sorted(row["image"] for row in rows) == names
        assert all(row["label"] in row["image"] for row in rows)
        assert found["loss"] == pytest.approx(expected, rel=1e-4)
        still = {"epochs": 1, "batch_size": 4, "warmup_epochs": 0, "learning_rate": 1e-6}
        history = kv.fit(model, given, **still).history
        assert history["val_loss"] == [pytest.approx(expected, rel=1e-3)]
    with pytest.raises(OSError, match=r"04\.png"):
        kv.evaluate(model, kv.data.load_dataset(source, strict=True), "validation")
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(OSError, match=r"no image .* can be decoded: .*00\.png"):
        kv.evaluate(model, source, "validation", batch_size=4)


@backend_free
def test_mirror_images_and_crop_ratio():
    images, labels = TEST
    model = small()
    mean = (predict(model, images) + predict(model, images[:, :, ::-1])) / 2
    found = kv.evaluate(model, TEST, flips=True, predictions=True)
    np.testing.assert_allclose(found["probabilities"], mean, rtol=1e-5)
    np.testing.assert_array_equal(found["labels"], labels)

    model, source = small(), (TRAIN, VALIDATION)
    before = model.preprocessing
    found = kv.evaluate(model, source, "train", crop_ratio=0.5)
    model.preprocessing = {**before, "crop_ratio": 0.5}
    assert found["loss"] == kv.evaluate(model, source, "train")["loss"]
    model.preprocessing = before
    assert found["loss"] != kv.evaluate(model, source, "train")["loss"]
    # LibreYOLO/libreyolo#879, keras-team/keras#13165
    history = kv.fit(model, source, crop_ratio=0.5, result="last", **SHORT).history
    right = kv.evaluate(model, source, "validation")["loss"]
    assert history["val_loss"][-1] == pytest.approx(right, rel=1e-4)


@backend_free
def test_a_row_per_image(tmp_path):
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    source = named(tmp_path / "a.npz", images, labels, NAMES)
    kv.evaluate(model, source, per_image=tmp_path / "rows.csv")
    rows, values = rows_of(tmp_path / "rows.csv"), predict(model, images)
    assert sorted(int(row["image"]) for row in rows) == list(range(40))
    chances = [float(row["label_probability"]) for row in rows]
    assert chances == sorted(chances)
    for row in rows:
        index = int(row["image"])
        assert row["label"] == NAMES[labels[index]]
        assert row["prediction"] == NAMES[values[index].argmax()]
        assert row["right"] == str(int(row["label"] == row["prediction"]))
        assert float(row["p(up)"]) == pytest.approx(values[index, 2], abs=1e-5)


@backend_free
@pytest.mark.parametrize("activation", ("softmax", None))
def test_the_threshold_of_two_classes(activation):
    images, _ = TEST
    model = small(2, activation)
    values = kv.evaluate(model, TEST, predictions=True)["probabilities"][:, 1]
    limit = np.quantile(values, 0.8)
    source = images, (values > limit).astype("int32")
    before = kv.evaluate(model, source, scores=True, confusion=True)
    threshold = kv.training.choose_threshold(model, source, None)
    assert values[values <= limit].max() < threshold < values[values > limit].min()
    after = kv.evaluate(model, source, scores=True, confusion=True)
    assert before["f1"] < after["f1"] == after["accuracy"] == after["class_accuracy"] == 1
    assert (after["confusion"] == np.diag(np.diag(after["confusion"]))).all()


@backend_free
def test_the_thresholds_of_several_labels(tmp_path):
    images, _ = TRAIN
    model = small(3, "sigmoid")
    values = predict(model, images)
    limits = np.diag(np.quantile(values, [0.3, 0.6, 0.8], axis=0))
    source = images, (values > limits).astype("float32")
    before = kv.evaluate(model, source, scores=True)
    thresholds = kv.training.choose_threshold(model, source, None)
    after = kv.evaluate(model, source, scores=True, per_image=tmp_path / "a.csv")
    assert len(set(thresholds)) == 3
    assert before["binary_accuracy"] < after["binary_accuracy"] == 1 == after["f1"]
    rows = rows_of(tmp_path / "a.csv")
    assert all(row["right"] == "1" and row["label"] == row["prediction"] for row in rows)
    assert any("|" in row["label"] for row in rows)


# scikit-learn/scikit-learn#12309, dotnet/machinelearning#3773, tensorflow/addons#2526
@pytest.mark.parametrize("several", (False, True))
def test_thresholds_are_those_of_outputs_in_any_order_of_the_source(several, tmp_path):
    images, _ = TRAIN
    model, order = (small(3, "sigmoid"), [2, 0, 1]) if several else (small(2), [1, 0])
    own = model.class_names = NAMES[: len(order)]
    values = predict(model, images)
    if several:
        labels = values > np.diag(np.quantile(values, [0.3, 0.6, 0.8], axis=0))
        labels = labels.astype("float32"), labels[:, order].astype("float32")
    else:
        labels = (values[:, 1] > np.quantile(values[:, 1], 0.8)).astype("int32")
        labels = labels, 1 - labels
    names = tuple(NAMES[i] for i in order)
    sources = [
        named(tmp_path / f"{given[0]}.npz", images, y, given)
        for given, y in zip((own, names), labels, strict=True)
    ]
    for source in sources:
        kv.training.choose_threshold(model, source, None)
        for other in sources:
            metrics = kv.evaluate(model, other)
            assert metrics["binary_accuracy" if several else "accuracy"] == 1


@backend_free
def test_thresholds_are_saved(tmp_path):
    sizes = {"input_shape": (4, 4, 1), "patch_size": 2, "classes": 3}
    model = kv.ViT(8, 1, 2, **sizes, classifier_activation="sigmoid")
    model.threshold = (0.25, 0.5, 0.75)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    for other in (loaded, model.at_size((8, 8))):
        assert tuple(other.threshold) == model.threshold
    labels = np.eye(3, dtype="float32")[np.arange(48) % 3]
    values = loaded.predict(kv.preprocess_input(TRAIN[0], loaded), verbose=0)
    right = ((values > model.threshold) == labels).mean()
    found = kv.evaluate(loaded, (TRAIN[0], labels))
    assert found["binary_accuracy"] == pytest.approx(right, abs=1e-6)


@backend_free
def test_models_side_by_side():
    models, source = {"one": small(), "other": small(activation=None)}, (TRAIN, VALIDATION, TEST)
    found = kv.evaluate(models, source, "validation", scores=True)
    for name, model in models.items():
        alone = kv.evaluate(model, source, "validation", scores=True)
        assert found[name] | {"images_per_second": 0} == alone | {"images_per_second": 0}
