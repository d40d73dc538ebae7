import numpy as np
import pytest

from keras_vitx.data import load_dataset

pytestmark = pytest.mark.backend_free


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    images = random.integers(256, size=(40, 6, 5, 3), dtype="uint8")
    return images, np.arange(40) % 4


def test_a_pair_is_split_alike_for_each_class(arrays):
    images, labels = arrays
    source = load_dataset(arrays, validation_split=0.2, seed=3)
    assert source.class_names == ("0", "1", "2", "3")
    assert np.bincount(source.train.labels).tolist() == [8] * 4
    assert np.bincount(source.validation.labels).tolist() == [2] * 4
    given = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for split in (source.train, source.validation):
        for image, label in zip(split.images, split.labels, strict=True):
            assert given.pop(image.tobytes()) == label
    assert not given


@pytest.mark.parametrize(
    "labels, message",
    [
        ([0, 1, -2, 3] * 10, "Received: -2"),
        ([0, 1, np.nan, 3] * 10, "Received: nan"),
        ([[0, np.inf]] * 40, "Received: inf"),
        ([0, 1, 2], "3 labels for 40 images"),
        (["cat", "dog"] * 20, "must be integers or floats. Received: 'cat', 'dog'"),
        (np.zeros((40, 2, 2)), r"Received: shape \(40, 2, 2\)"),
        ([0, 2**40] * 20, str(2**40)),
        ([7] * 40, "every label is 7"),
    ],
)
def test_wrong_labels_are_named(arrays, labels, message):
    with pytest.raises(ValueError, match=message):
        load_dataset((arrays[0], labels))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x[0], r"shape|2 labels|labels for"),
        (lambda x: x[:0], "not empty"),
        (lambda x: x.astype("int64"), "Received: int64"),
        (lambda x: x.astype("float32"), r"Received: float32 in 0\.\.255"),
        (lambda x: [np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], "one size"),
    ],
)
def test_wrong_images_are_an_error(arrays, change, message):
    with pytest.raises(ValueError, match=message):
        load_dataset((change(arrays[0]), arrays[1]))


@pytest.mark.parametrize(
    "labels, classes",
    [
        (np.eye(4)[np.arange(40) % 4], 4),
        (np.full((40, 3), 0.5), 3),
        (np.arange(120).reshape(40, 3) % 2, 3),
        (np.linspace(-1, 1, 40)[:, None], None),
        (np.linspace(0, 9, 120).reshape(40, 3), None),
    ],
    ids=["one-hot", "soft", "multi-hot", "numbers", "several numbers"],
)
def test_other_labels_than_integers_stay_as_they_are(arrays, labels, classes):
    source = load_dataset((arrays[0], labels), validation_split=0.2)
    names = None if classes is None else tuple(map(str, range(classes)))
    assert source.class_names == names
    assert source.validation.size == 8
    given = {image.tobytes(): label for image, label in zip(arrays[0], labels, strict=True)}
    for split in (source.train, source.validation):
        assert split.labels.dtype == np.float32
        for image, label in zip(split.images, split.labels, strict=True):
            np.testing.assert_array_equal(
                label, np.squeeze(given[image.tobytes()]).astype("float32")
            )


def test_one_hot_labels_are_split_like_integers(arrays):
    one_hot = load_dataset((arrays[0], np.eye(4)[arrays[1]]), seed=3)
    integers = load_dataset(arrays, seed=3)
    np.testing.assert_array_equal(one_hot.validation.images, integers.validation.images)


def test_parts_with_labels_of_two_forms_are_an_error(arrays):
    with pytest.raises(
        ValueError, match=r"one form in all splits\. Received: int32 .* float32 \(40, 4\)"
    ):
        load_dataset((arrays, (arrays[0], np.eye(4)[arrays[1]])))


def test_a_test_part_is_kept_apart(arrays, tmp_path):
    images, labels = arrays
    path = tmp_path / "set.npz"
    parts = {"x_train": images, "y_train": labels, "x_test": images[:8], "y_test": labels[:8]}
    np.savez(path, **parts)
    source = load_dataset(str(path), validation_split=0.25)
    assert [source.train.size, source.validation.size, source.test.size] == [32, 8, 8]
    np.testing.assert_array_equal(source.test.images, images[:8])
    assert load_dataset(path, validation_split=0).validation is None

    np.savez(path, **parts, x_val=images[8:12], y_val=labels[8:12])
    for given in (path, ((images, labels), (images[8:12], labels[8:12]), (images[:8], labels[:8]))):
        source = load_dataset(given, validation_split=0.25)
        assert [source.train.size, source.validation.size, source.test.size] == [40, 4, 8]
        np.testing.assert_array_equal(source.validation.images, images[8:12])


def test_an_npz_file_that_expands_too_far_is_refused(arrays, tmp_path, monkeypatch):
    images = np.zeros((400, 32, 32, 3), "uint8")
    np.savez_compressed(tmp_path / "set.npz", x_train=images, y_train=np.arange(400) % 2)
    assert load_dataset(tmp_path / "set.npz").train.size
    monkeypatch.setattr("keras_vitx.data.sources.arrays.MAX_SMALL", 1 << 20)
    with pytest.raises(OSError, match="expand to 1,232,"):
        load_dataset(tmp_path / "set.npz")


@pytest.mark.parametrize("split", [1, -0.1, 1.5, "0.1", None, float("nan")])
def test_the_validation_split_is_a_share(arrays, split):
    with pytest.raises(ValueError, match="validation_split"):
        load_dataset(arrays, validation_split=split)


def test_a_class_of_one_image_is_trained_on_and_named(arrays, caplog):
    labels = np.array([0] * 39 + [1])
    source = load_dataset((arrays[0], labels), validation_split=0.5)
    assert 1 in source.train.labels and 1 not in source.validation.labels
    assert len(caplog.records) == 1 and "missing from validation: 1." in caplog.text
    with pytest.raises(ValueError, match="no class has two images"):
        load_dataset((arrays[0], np.arange(40)))


@pytest.mark.parametrize("source", ["cifar10", 3, None, "no/such/folder"])
def test_an_unknown_source_says_what_is_known(source):
    with pytest.raises(ValueError, match=r'`source` .*"fashion_mnist", "tfds:NAME", a folder'):
        load_dataset(source)


def test_floats_are_numbers_and_integers_are_classes(arrays):
    ages = np.arange(40) % 7 + 20
    assert load_dataset((arrays[0], ages.astype("float64"))).class_names is None
    assert load_dataset((arrays[0], ages.astype("float64"))).train.labels.dtype == np.float32
    assert len(load_dataset((arrays[0], ages)).class_names) == 27
    assert load_dataset((arrays[0], np.arange(40) % 2 * 1.0)).class_names == ("0", "1")


def test_pairs_are_the_splits_and_images_become_bytes(arrays):
    images, labels = arrays
    grey = images[..., 0] / 255
    source = load_dataset(((grey[:30], labels[:30, None]), (grey[30:], labels[30:])))
    np.testing.assert_array_equal(source.train.images, images[:30, ..., :1])
    np.testing.assert_array_equal(source.train.labels, labels[:30])
    np.testing.assert_array_equal(source.validation.labels, labels[30:])


@pytest.mark.parametrize(
    "keys, error, message",
    [
        ({"images": 0, "labels": 1}, ValueError, "x_train and .* found images, labels"),
        ({"x_train": 0, "y_train": 1, "x_test": 0}, ValueError, "found x_test, x_train, y_train"),
        ({"x_train": 0, "y_train": 1, "class_names": 2}, ValueError, r"in 0\.\.2\. Received: 3"),
        (b"", OSError, r"set\.npz can't be read"),
        (b"nothing of the kind", OSError, r"set\.npz can't be read"),
        (b"PK\x03\x04 cut", OSError, r"set\.npz can't be read"),
    ],
)
def test_a_wrong_npz_file_is_named(arrays, tmp_path, keys, error, message):
    path, content = tmp_path / "set.npz", (*arrays, ["a", "b", "c"])
    if isinstance(keys, bytes):
        path.write_bytes(keys)
    else:
        np.savez(path, **{key: content[index] for key, index in keys.items()})
    with pytest.raises(error, match=message):
        load_dataset(path)
