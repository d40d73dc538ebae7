"""`kv.evaluate`: metrics, classes by name, predictions."""

import keras
import numpy as np
import pytest
from harness import save_picture, softmax
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
)

import keras_vitx as kv

NAMES = ("left", "right", "up", "down", "near", "far", "on", "off")
backend_free = pytest.mark.backend_free


def classes_of(count=40, classes=8):
    images = np.random.default_rng(0).integers(0, 255, (count, 4, 4, 1), "uint8")
    return images, np.arange(count) % classes


def predict(model, images):
    return model.predict(ready(images), verbose=0)


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
    # All that is given is measured, if it has no splits.
    found = kv.evaluate(model, TRAIN, batch_size=16)
    assert (found["split"], found["images"]) == ("train", len(TRAIN[1]))


class Weighted(Batched):
    """Batches whose images weigh 2.5, but for the first of each, which weighs nothing."""

    def __getitem__(self, index):
        images, labels = super().__getitem__(index)
        return images, labels, np.float32([0.0] + [2.5] * (len(labels) - 1))


def test_images_are_counted_whatever_their_weights():
    """The loss is the mean of weight times loss, as Keras reports it in training."""
    model, (images, labels) = small(), TRAIN
    found = kv.evaluate(model, Weighted(images, labels, size=8))
    kept = np.arange(len(labels)) % 8 > 0
    assert found["images"] == kept.sum()
    expected = crossentropy(model, images[kept], labels[kept])
    assert found["loss"] == pytest.approx(2.5 * expected, rel=1e-4)


@backend_free
@pytest.mark.parametrize("by_name", [False, True])
def test_the_images_that_a_run_held_out(by_name, tmp_path):
    """`evaluate` gives the validation results of `fit`, by the same fraction or by the names."""
    model, split = small(), {"validation_split": 0.25, "seed": 5}
    history = kv.fit(model, TRAIN, output=tmp_path, **SHORT, **split).history
    names = kv.training.held_out(tmp_path)
    split = {"validation_split": names} if by_name else split
    found = kv.evaluate(model, kv.data.load_dataset(TRAIN, **split), "validation")
    assert found["images"] == len(names) == 12
    assert found["loss"] == pytest.approx(history["val_loss"][best_of(history)], rel=1e-5)


@backend_free
def test_labels_go_by_name(tmp_path):
    """With the classes in another order, or only some of them, the results are the same."""
    images, labels = classes_of()
    model = small(8)
    model.class_names = NAMES
    expected = kv.evaluate(model, (images, labels))
    among = (np.argsort(-predict(model, images), -1)[:, :5] == labels[:, None]).any(-1)
    assert expected["top_5_accuracy"] == pytest.approx(among.mean())

    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    path, names = tmp_path / "names.npz", [NAMES[i] for i in order]
    found = kv.evaluate(model, named(path, images, np.argsort(order)[labels], names))
    assert found == pytest.approx(expected)
    some = labels < 3
    found = kv.evaluate(model, named(path, images[some], 2 - labels[some], NAMES[2::-1]))
    assert found["loss"] == pytest.approx(crossentropy(model, images[some], labels[some]), rel=1e-4)
    with pytest.raises(ValueError, match="Received: 'in'"):
        kv.evaluate(model, named(path, images[some], labels[some], ("left", "right", "in")))


@backend_free
@pytest.mark.parametrize("case", ("one-hot", "logits", "one sigmoid", "several labels"))
def test_predictions(case):
    """The labels as the batches have them, and probabilities of at least two classes."""
    (images, labels), several = classes_of(30, 3), np.eye(3, dtype="float32")[np.arange(30) % 3]
    if case == "several labels":
        several[::2, 1] = 1
    model, given, expected = {
        "one-hot": (small(3), several, labels),
        "logits": (small(3, None), labels, labels),
        "one sigmoid": (small(1, "sigmoid"), labels % 2, labels % 2),
        "several labels": (small(3, "sigmoid"), several, several),
    }[case]
    p = predict(model, images)
    p = softmax(p) if case == "logits" else p
    p = np.concatenate([1 - p, p], 1) if case == "one sigmoid" else p
    found = kv.evaluate(model, Batched(images, given, size=8), predictions=True)
    np.testing.assert_array_equal(found["labels"], expected)
    np.testing.assert_allclose(found["probabilities"], p, atol=1e-5)
    assert found["class_names"] == tuple("012")[: p.shape[1]]


@backend_free
def test_predictions_are_in_the_order_of_the_source(tmp_path):
    model, (images, labels) = small(3), classes_of(30, 3)
    model.class_names, some = NAMES[:3], labels != 1
    path = named(tmp_path / "s.npz", images[some], labels[some] // 2, ("left", "up"))
    found = kv.evaluate(model, path, "train", predictions=True)
    assert found["class_names"] == ("left", "up", "right")
    expected = predict(model, images[some])[:, [0, 2, 1]]
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)


@backend_free
def test_a_batch_of_which_no_image_can_be_read_counts_as_none(tmp_path):
    images, labels = classes_of(12, 1)[0], np.repeat([0, 1], 6)
    for split in ("train", "val"):
        names = (tmp_path / split / f"class {y}" / f"{i:02}.png" for i, y in enumerate(labels))
        paths = [save_picture(path, image) for path, image in zip(names, images, strict=True)]
    source = kv.data.load_dataset(tmp_path)
    for path in paths[4:8]:
        path.write_bytes(b"")
    kept, model = np.delete(np.arange(12), range(4, 8)), small()
    model.class_names = ("class 0", "class 1")
    expected = crossentropy(model, images[kept], labels[kept])
    for given in (source, kv.data.pipelines(source, model, 4)):
        found = kv.evaluate(model, given, "validation", batch_size=4, predictions=True)
        assert found["images"] == len(found["labels"]) == 8
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
def test_crop_ratio():
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
