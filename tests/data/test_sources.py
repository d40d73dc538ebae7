"""Directories, files, arrays and the sample of Fashion-MNIST as labeled sets of images."""

import hashlib
import os
import pickle
import re
import shutil

import numpy as np
import pytest
from harness import picture, save_picture
from hypothesis import assume, given
from hypothesis import strategies as st

from keras_vitx.data import from_files, load_dataset
from keras_vitx.data.sources import directories
from keras_vitx.data.sources.arrays import FASHION_MNIST

pytestmark = pytest.mark.backend_free
README = FASHION_MNIST.with_name("README.md").read_text("utf-8")

PIXELS = np.random.default_rng(0).integers(256, size=(40, 6, 5, 3), dtype="uint8")
CLASSES = np.arange(40) % 4
ARRAYS = PIXELS, CLASSES
"""40 images of four classes."""


def sizes(source):
    return [part and len(part) for part in (source.train, source.validation, source.test)]


def counts(split):
    return np.bincount(split.labels).tolist()


# The split


def test_a_seed_holds_out_the_same_images():
    first, again, other, one_hot = (
        load_dataset((PIXELS, labels), validation_split=0.2, seed=seed).validation
        for seed, labels in ((1, CLASSES), (1, CLASSES), (2, CLASSES), (1, np.eye(4)[CLASSES]))
    )
    assert first.names() == again.names() == one_hot.names() != other.names()
    assert counts(first) == [2] * 4 and first.labels.dtype == np.int32


LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=40).filter(lambda y: len({*y}) > 1)
PARTS = st.floats(0.01, 0.99)


@given(LABELS, PARTS, st.integers(0, 9), st.booleans())
def test_a_split_takes_each_image_once_and_of_each_class(labels, part, seed, one_hot):
    labels = np.array(labels)
    assume(np.bincount(labels).max() > 1)
    images = np.arange(len(labels), dtype="uint8").reshape(-1, 1, 1, 1)
    source = images, np.eye(5)[labels] if one_hot else labels
    found = load_dataset(source, validation_split=part, seed=seed)
    ids = [split.images.keys for split in (found.train, found.validation)]
    assert sorted([*ids[0], *ids[1]]) == list(range(len(labels)))
    for split, keys in zip((found.train, found.validation), ids, strict=True):
        of = split.labels.argmax(-1) if one_hot else split.labels
        assert of.tolist() == labels[keys].tolist()
        assert np.ravel(split.images).tolist() == keys
    for label in {*labels.tolist()}:
        in_train, in_validation = ((labels[keys] == label).sum() for keys in ids)
        wanted = min(max(round(part * (labels == label).sum()), 1), in_train + in_validation - 1)
        assert in_validation == wanted


def test_named_images_are_held_out(pets, caplog):
    names = load_dataset(pets, validation_split=0.1, seed=5).validation.names()
    assert all(name.startswith(("cat/", "dog/")) for name in names)
    shutil.copy(pets / "cat" / "0.jpg", pets / "cat" / "00.jpg")  # would shift a random split
    source = load_dataset(load_dataset(pets), validation_split=names)
    assert source.validation.names() == names and len(source.train) == 21 - len(names)
    load_dataset(pets, validation_split=[*names, "cat/gone.jpg"])
    assert "1 held-out images are no longer in the source: cat/gone.jpg" in caplog.text


# Directories


def test_files_that_pillow_can_not_read_are_counted(pets, monkeypatch, caplog):
    (pets / "cat" / "IMG_1.HEIC").write_bytes(b"of a phone")
    for name in ("raw.cr2", "pixels.mat", "download"):
        (pets / "dog" / name).write_bytes(b"of a camera")
    monkeypatch.setattr(directories, "readable_suffixes", lambda: {".jpg", ".png"})
    source = load_dataset(pets)
    assert "4 images are of formats" in caplog.text
    assert "(1 .cr2, 1 .heic, 1 .mat, 1 without a suffix)" in caplog.text
    assert {path.name for path in source.skipped} > {"IMG_1.HEIC", "raw.cr2"}
    with pytest.raises(OSError, match=r"4 images .* such as .*IMG_1\.HEIC"):
        load_dataset(pets, strict=True)


@pytest.mark.parametrize("suffix", [".jfif", ".jp2", ".avif"])
def test_whatever_pillow_reads_is_read(pets, suffix):
    if suffix not in directories.readable_suffixes():
        pytest.skip(f"this Pillow does not read {suffix}")
    path = save_picture(pets / "cat" / f"x{suffix}", picture(32, 32))
    train = load_dataset(pets).train
    assert train.images[train.images.keys.index(path)].shape == (32, 32, 3)


PETS = [f"{name}/{i}.jpg" for name in ("cat", "dog") for i in range(2)]
TRAIN = [f"train/{file}" for file in PETS]


@pytest.mark.parametrize(
    "files, names, counts",
    [  # (files, class names, images of train, validation, test)
        ([*TRAIN, "val/dog/0.jpg", "test/dog/0.jpg"], "cat dog", [4, 1, 1]),
        ([*TRAIN, "validation/dog/0.jpg", "annotations/boxes.json"], "cat dog", [4, 1, 0]),
        ([*TRAIN, "test/0.jpg", "test/1.jpg", "val/"], "cat dog", [4, 0, 0]),
        (["val/cat/0.jpg", "test/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [0, 1, 2]),
        (["train/0.jpg", "bus/0.jpg"], "bus train", [2, 0, 0]),
        ([*PETS, "owl/", "0.jpg", "$RECYCLE.BIN/0.jpg"], "cat dog", [4, 0, 0]),
        ([f"{i}/0.jpg" for i in range(12)], " ".join(map(str, range(12))), [12, 0, 0]),
        (["train/é/0.jpg", "train/a/0.jpg", "val/e\u0301/0.jpg"], "a é", [2, 1, 0]),
        ([*PETS, ".cache/", "__MACOSX/", "cat/._0.jpg", "cat/Thumbs.db", "cat/@eaDir/0.jpg",
          "cat/.ipynb_checkpoints/0.jpg"], "cat dog", [4, 0, 0]),
    ],
)  # fmt: skip
def test_layouts(tmp_path, files, names, counts):
    touch(tmp_path, files)
    source = load_dataset(tmp_path)
    assert source.class_names == tuple(names.split()) and source.skipped == ()
    assert [size or 0 for size in sizes(source)] == counts


# googlecodelabs/tensorflow-for-poets-2#98
@pytest.mark.parametrize("names", ["Training Testing", "seg_train/seg_train seg_test/seg_test"])
def test_a_warning_says_what_else_was_taken_for_a_class(tmp_path, names, caplog):
    touch(tmp_path, [f"{name}/{file}" for name in names.split() for file in PETS])
    assert len(load_dataset(tmp_path).class_names) == 2
    assert "Taken for classes" in caplog.text and names[:8] in caplog.text


def touch(directory, files):
    """Write empty files; names of directories end with a slash."""
    for file in files:
        parent, _, name = file.rpartition("/")
        (directory / parent).mkdir(parents=True, exist_ok=True)
        (directory / parent / name).touch()


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_links_are_followed_and_each_directory_once(pets, tmp_path):
    shutil.move(pets / "dog", tmp_path / "elsewhere")
    (pets / "dog").symlink_to(tmp_path / "elsewhere")
    (pets / "dog" / "cycle").symlink_to(pets / "dog")
    (pets / "cat" / "up").symlink_to(pets)
    (pets / "itself").symlink_to(pets)
    assert counts(load_dataset(pets).train) == [10, 10]


# Files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_of_files_labels_and_splits(pets, encoding):
    rows = ["file,label,split", "cat/0.jpg,10,train", '"dog/0.jpg",9,train', "dog/1.jpg,10,val"]
    (pets / "t.csv").write_text("\n".join([*rows, "dog/2.jpg,9,test", ""]), encoding)
    source = load_dataset(pets / "t.csv")
    assert source.class_names == ("9", "10") and source.train.labels.tolist() == [1, 0]
    assert sizes(source) == [2, 1, 1] and source.train.names() == ["cat/0.jpg", "dog/0.jpg"]
    assert source.train.images[0].shape == (40, 50, 3)
    (pets / "t.csv").write_text("file,label\ncat/0.jpg,cat\ndog/0.jpg,dog\n")
    assert load_dataset(str(pets / "t.csv")).train.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "labels, given, names, found",
    [
        (["b", "a", "b"], None, ("a", "b"), [1, 0, 1]),
        (["b", "a", "b"], ["b", "a", "c"], ("b", "a", "c"), [0, 1, 0]),
        ([2, 0, 1], ["x", "y", "z"], ("x", "y", "z"), [2, 0, 1]),
        ([[1, 0], [1, 1], [0, 0]], ["x", "y"], ("x", "y"), [[1, 0], [1, 1], [0, 0]]),
        ([2, 0, 1], {0: "x", 1: "y", "2": "z"}, ("x", "y", "z"), [2, 0, 1]),
        ([b"b", b"a", b"b"], None, ("a", "b"), [1, 0, 1]),
        (["1e1", "+1", "-2.0"], None, ("-2.0", "+1", "1e1"), [2, 1, 0]),
        ([1.5, 2, 4], None, None, [1.5, 2, 4]),
    ],
)
def test_files_with_labels_of_every_form(pets, labels, given, names, found):
    paths = [str(pets / file) for file in PETS[:3]]
    source = from_files(paths, labels, given)
    assert source.class_names == names and source.train.labels.tolist() == found
    assert source.train.images[2].shape == (40, 50, 3) and source.train.names() == paths


def test_all_splits_of_a_table_have_its_names():
    files, split = [f"{i}.jpg" for i in range(5)], ["test", "train", "train", "val", "Train"]
    source = from_files(files, ["dog", "cat", "dog", "fox", "cat"], split=split)
    assert source.class_names == ("cat", "dog", "fox") and sizes(source) == [3, 1, 1]
    assert source.test.labels == [1] and source.test.names() == ["0.jpg"]


def test_files_that_are_contents(pets):
    path = pets / "cat" / "0.jpg"
    files = [{"bytes": path.read_bytes(), "path": None}, {"bytes": None, "path": str(path)}, path]
    train = from_files(files, ["a", "b", "a"]).train
    assert len(set(train.names())) == 2 and train.take([0]).names() == train.names()[:1]
    assert all((image == train.images[2]).all() for image in train.images)


# Arrays


def test_pairs_are_the_splits_and_images_become_bytes(tmp_path):
    images, labels = ARRAYS
    gray = images[..., 0] / 255
    source = load_dataset(((gray[:30], labels[:30, None]), (gray[30:], labels[30:])))
    np.testing.assert_array_equal(source.train.images, images[:30, ..., :1])
    np.testing.assert_array_equal(source.train.labels, labels[:30])
    np.testing.assert_array_equal(source.validation.labels, labels[30:])
    path = tmp_path / "set.npz"
    medmnist = {"train_images": images, "train_labels": labels[:, None]}
    np.savez(path, **medmnist, val_images=images[:9], val_labels=labels[:9, None])
    assert sizes(load_dataset(str(path))) == [40, 9, None]
    np.savez(path, x_test=images, y_test=labels)
    assert sizes(load_dataset(path)) == [None, None, 40]
    parts = {"x_train": images, "y_train": labels, "x_test": images[:8], "y_test": labels[:8]}
    np.savez(path, **parts, x_val=images[8:12], y_val=labels[8:12])
    for each in (path, (ARRAYS, (images[8:12], labels[8:12]), (images[:8], labels[:8]))):
        source = load_dataset(each)
        assert sizes(source) == [40, 4, 8]
        np.testing.assert_array_equal(source.validation.images, images[8:12])


@pytest.mark.parametrize("order", "CF")
def test_a_memory_map_is_opened_and_not_copied_by_another_process(tmp_path, order):
    images = np.random.default_rng(0).integers(256, size=(400, 16, 16, 3), dtype="uint8")
    np.save(tmp_path / "images.npy", np.asarray(images, order=order))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    split = load_dataset((mapped, np.arange(len(mapped)) % 2)).train
    assert np.shares_memory(split.images.array, mapped)
    sent = pickle.dumps(split)
    assert len(sent) < 20_000
    for again in (pickle.loads(sent), pickle.loads(pickle.dumps(pickle.loads(sent)))):
        np.testing.assert_array_equal(again.images, images)
    part = load_dataset((mapped[5:], np.arange(395) % 2)).train
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).images, images[5:])
    own = load_dataset((np.load(tmp_path / "images.npy", mmap_mode="c"), np.arange(400) % 2))
    own.train.images.array.base[:] = 7  # Not in the file.
    assert pickle.loads(pickle.dumps(own.train)).images[0].max() == 7


@pytest.mark.parametrize(
    "labels, classes",
    [
        (np.eye(4)[np.arange(40) % 4], 4),
        (np.full((40, 3), 0.5), 3),
        (np.arange(120).reshape(40, 3) % 2, 3),
        (np.linspace(-1, 1, 40)[:, None], None),
        (np.linspace(0, 9, 120).reshape(40, 3), None),
        (np.arange(40) % 7 + 20.0, None),  # Ages are numbers,
        (np.arange(40) % 7 + 20, 27),  # integers are classes,
        (np.arange(40) % 2 * 1.0, 2),  # and so are 0 and 1.
    ],
)
def test_labels_of_every_form(labels, classes):
    source = load_dataset((PIXELS, labels), validation_split=0.2)
    assert source.class_names == (classes and tuple(map(str, range(classes))))
    of_classes = classes and labels.ndim == 1
    for split in (source.train, source.validation):
        assert split.labels.dtype == (np.int32 if of_classes else np.float32)
        wanted = labels[split.images.keys].astype("float32")
        np.testing.assert_array_equal(split.labels, wanted.reshape(split.labels.shape))


# The sample of Fashion-MNIST


def test_the_sample_is_as_its_readme_says():
    source = load_dataset("fashion_mnist", validation_split=0.1)
    for split, count in ((source.train, 450), (source.validation, 50), (source.test, 100)):
        assert np.asarray(split.images).shape == (10 * count, 28, 28, 1)
        assert counts(split) == [count] * 10
    assert source.class_names[9] == "Ankle boot"
    stated = re.search(r"`sample.npz`:\s+`([0-9a-f]{64})`", README)[1]
    assert hashlib.sha256(FASHION_MNIST.read_bytes()).hexdigest() == stated
