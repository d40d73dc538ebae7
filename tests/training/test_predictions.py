"""What `evaluate` tells about single images, thresholds, mirror images and several models."""

import csv

import keras
import numpy as np
import pytest
from test_evaluate import NAMES, classes_of, named
from test_fit import TEST, TRAIN, VALIDATION, Batched, ready, small

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


def of_several(images, classes=3):
    """A model of independent classes, and labels that it predicts at thresholds other than 0.5."""
    model = small(classes, "sigmoid")
    values = model.predict(ready(images), verbose=0)
    limits = np.quantile(values, [0.3, 0.6, 0.8], axis=0)[np.arange(classes), np.arange(classes)]
    return model, (values > limits).astype("float32"), values


def test_a_row_per_image(tmp_path):
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    source = named(images, labels, NAMES, tmp_path / "a.npz")
    kv.evaluate(model, source, per_image=tmp_path / "rows.csv")
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    values = model.predict(ready(images), verbose=0)
    assert sorted(int(row["image"]) for row in rows) == list(range(40))
    chances = [float(row["label_probability"]) for row in rows]
    assert chances == sorted(chances)
    for row in rows:
        index = int(row["image"])
        assert (row["label"], row["prediction"]) == (
            NAMES[labels[index]],
            NAMES[values[index].argmax()],
        )
        assert row["right"] == str(int(row["label"] == row["prediction"]))
        assert float(row["p(up)"]) == pytest.approx(values[index, 2], abs=1e-5)


def test_a_row_per_file(tmp_path):
    """Files have their names, also beside one that can't be read."""
    from PIL import Image

    for index, picture in enumerate(TRAIN[0][:6]):
        path = tmp_path / "photos" / ("left", "right")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[..., 0]).save(path)
    (tmp_path / "photos" / "left" / "0.png").write_bytes(b"no image")
    model = small()
    model.class_names = ("left", "right")
    kv.evaluate(model, tmp_path / "photos", per_image=tmp_path / "rows.csv")
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert {row["image"] for row in rows} == {
        *(f"left/{i}.png" for i in (2, 4)),
        *(f"right/{i}.png" for i in (1, 3, 5)),
    }
    assert all(row["image"].startswith(row["label"]) for row in rows)


def test_the_threshold_of_two_classes(tmp_path):
    images, _ = TEST
    for activation in ("softmax", None):
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


def test_the_thresholds_of_several_labels(tmp_path):
    images, _ = TRAIN
    model, labels, _ = of_several(images)
    before = kv.evaluate(model, (images, labels), scores=True)
    thresholds = kv.training.choose_threshold(model, (images, labels), None)
    after = kv.evaluate(model, (images, labels), scores=True, per_image=tmp_path / "a.csv")
    assert len(set(thresholds)) == 3
    assert before["binary_accuracy"] < after["binary_accuracy"] == 1 == after["f1"]
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert all(row["right"] == "1" and row["label"] == row["prediction"] for row in rows)
    assert any("|" in row["label"] for row in rows)


def test_thresholds_are_saved(tmp_path):
    arguments = {"input_shape": (4, 4, 1), "patch_size": 2, "classes": 3}
    model = kv.ViT(8, 1, 2, **arguments, classifier_activation="sigmoid")
    model.threshold = (0.25, 0.5, 0.75)
    model.save(tmp_path / "m.keras")
    kv.save(model, tmp_path / "directory")
    for loaded in (
        keras.saving.load_model(tmp_path / "m.keras"),
        kv.load(tmp_path / "directory"),
        model.at_size((8, 8)),
    ):
        assert tuple(loaded.threshold) == model.threshold
    labels = np.eye(3, dtype="float32")[np.arange(48) % 3]
    found = kv.evaluate(loaded := keras.saving.load_model(tmp_path / "m.keras"), (TRAIN[0], labels))
    values = loaded.predict(kv.preprocess_input(TRAIN[0], loaded), verbose=0)
    right = (values > model.threshold) == labels
    assert found["binary_accuracy"] == pytest.approx(right.mean(), abs=1e-6)


def test_mirror_images():
    images, labels = TEST
    model = small()
    values = [model.predict(ready(x), verbose=0) for x in (images, images[:, :, ::-1])]
    found = kv.evaluate(model, TEST, flips=True, predictions=True)
    np.testing.assert_allclose(found["probabilities"], np.mean(values, 0), rtol=1e-5)
    np.testing.assert_array_equal(found["labels"], labels)


def test_models_side_by_side():
    models = {"one": small(), "other": small(activation=None)}
    source = TRAIN, VALIDATION, TEST
    found = kv.evaluate(models, source, "validation", scores=True)
    for name, model in models.items():
        alone = kv.evaluate(model, source, "validation", scores=True)
        assert found[name] | {"images_per_second": 0} == alone | {"images_per_second": 0}


def test_what_has_no_threshold():
    model = small(8)
    for call, message in (
        (lambda: kv.training.choose_threshold(model, classes_of(), None), "one of 8 classes"),
        (lambda: kv.training.choose_threshold(small(), TEST, None, metric="auc"), "`metric`"),
        (lambda: kv.evaluate({"a": small()}, TEST, per_image="a.csv"), "`per_image`"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert model.threshold is None
    model.threshold = 0.3
    with pytest.raises(ValueError, match=r"`model\.threshold`"):
        kv.evaluate(model, Batched(*classes_of()))
