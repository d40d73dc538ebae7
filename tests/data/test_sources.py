"""Directories, tables, arrays and the sample of Fashion-MNIST as labeled sets of images."""

import csv
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import picture, save_picture
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from keras_vitx.data import load_dataset
from keras_vitx.data.sources import arrays as array_sources
from keras_vitx.data.sources import directories
from keras_vitx.data.sources.arrays import FASHION_MNIST
from keras_vitx.data.sources.directories import image_files, unreadable
from keras_vitx.data.sources.names import text_of

pytestmark = pytest.mark.backend_free
README = FASHION_MNIST.with_name("README.md").read_text("utf-8")

PIXELS = np.random.default_rng(0).integers(256, size=(40, 6, 5, 3), dtype="uint8")
CLASSES = np.arange(40) % 4
ARRAYS = PIXELS, CLASSES
"""40 images of four classes."""


def sizes(source):
    return [part and part.size for part in (source.train, source.validation, source.test)]


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
    names = load_dataset(pets, seed=5).validation.names()
    assert all(name.startswith(("cat/", "dog/")) for name in names)
    shutil.copy(pets / "cat" / "0.jpg", pets / "cat" / "00.jpg")  # would shift a random split
    source = load_dataset(pets, validation_split=names)
    assert source.validation.names() == names and source.train.size == 21 - len(names)
    load_dataset(pets, validation_split=[*names, "cat/gone.jpg"])
    assert "1 held-out images are no longer in the source: cat/gone.jpg" in caplog.text


def test_a_split_that_is_not_what_was_asked_for_is_said(caplog):
    load_dataset((PIXELS, np.arange(40) // 2), validation_split=0.1)
    assert "20 of 40 images are held out, not 0.1 of them" in caplog.text
    caplog.clear()
    source = load_dataset((PIXELS, np.array([0] * 39 + [1])), validation_split=0.5)
    assert 1 in source.train.labels and 1 not in source.validation.labels
    assert len(caplog.records) == 1 and "missing from validation: 1." in caplog.text
    caplog.clear()
    load_dataset(ARRAYS, validation_split=0.1)
    assert not caplog.records


# Directories


def test_opening_reads_no_file_and_a_check_finds_broken_ones(pets, monkeypatch):
    short = save_picture(pets / "cat" / "short.png", picture(60, 60))
    short.write_bytes(short.read_bytes()[:-3000])
    cut = pets / "cat" / "0.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    text = pets / "dog" / "text.jpg"
    text.write_text("no image")
    errors = unreadable(image_files(pets))
    assert errors.keys() == {short, cut, text}
    assert "text.jpg can't be decoded" in str(errors[text])
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("a file is read"))
    assert load_dataset(pets, validation_split=0).train.size == 22


def test_files_that_pillow_can_not_read_are_counted(pets, monkeypatch, caplog):
    (pets / "cat" / "IMG_1.HEIC").write_bytes(b"of a phone")
    (pets / "dog" / "raw.cr2").write_bytes(b"of a camera")
    monkeypatch.setattr(directories, "readable_suffixes", lambda: {".jpg", ".png"})
    source = load_dataset(pets)
    assert len(caplog.records) == 1 and "2 images" in caplog.text and ".cr2, .heic" in caplog.text
    assert {path.name for path in source.skipped} == {"IMG_1.HEIC", "raw.cr2"}
    with pytest.raises(OSError, match=r"2 images .* such as .*IMG_1\.HEIC"):
        load_dataset(pets, strict=True)


@pytest.mark.parametrize("suffix", [".jfif", ".jp2", ".avif"])
def test_whatever_pillow_reads_is_read(pets, suffix):
    if suffix not in directories.readable_suffixes():
        pytest.skip(f"this Pillow does not read {suffix}")
    path = save_picture(pets / "cat" / f"x{suffix}", picture(32, 32))
    train = load_dataset(pets, validation_split=0).train
    assert train.images[train.images.keys.index(path)].shape == (32, 32, 3)


PETS = [f"{name}/{i}.jpg" for name in ("cat", "dog") for i in range(2)]
TRAIN = [f"train/{file}" for file in PETS]
JUNK = (
    *(".ipynb_checkpoints", "@eaDir", "deep/@eaDir/0.jpg", ".Trash-1000/files", "__MACOSX"),
    *("$Recycle.Bin", "#recycle", "System Volume Information"),
)
SPLITS = ("Train", "val"), ("training", "validation"), ("train", "valid"), ("TRAIN", "dev")


def layout(directory, *files):
    """Write empty files, and directories, whose names end with a slash."""
    for file in files:
        parent, _, name = file.rpartition("/")
        (directory / parent).mkdir(parents=True, exist_ok=True)
        (directory / parent / name).touch()


@pytest.mark.parametrize(
    "files, names, counts",
    [  # (files, class names, images of train, validation, test)
        *(
            ([f"{a}/cat/0.jpg", f"{a}/dog/0.jpg", f"{b}/dog/0.jpg", "annotations/boxes.json"],
             "cat dog", [2, 1, 0])
            for a, b in SPLITS
        ),
        ([*TRAIN, "test/0.jpg", "test/1.jpg"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "test/unknown/0.jpg"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "test/"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "val/"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "val/cat/0.jpg", "val/owl/", "train/owl/"], "cat dog", [4, 1, 0]),
        ([*TRAIN, "test/dog/0.jpg", "notes.tfrecord.txt"], "cat dog", [4, 0, 1]),
        ([*TRAIN, "val/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [4, 1, 1]),
        (["test/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [0, 0, 2]),
        (["val/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [0, 1, 1]),
        (["train/0.jpg", "bus/0.jpg"], "bus train", [2, 0, 0]),
        ([*PETS, "owl/", "0.jpg", "$RECYCLE.BIN/0.jpg", "lost+found/0.jpg"], "cat dog", [4, 0, 0]),
        ([f"{i}/0.jpg" for i in range(12)], " ".join(map(str, range(12))), [12, 0, 0]),
        (["002/0.jpg", "10/0.jpg", "1/0.jpg"], "1 002 10", [3, 0, 0]),
        (["train/é/0.jpg", "train/a/0.jpg", "val/e\u0301/0.jpg"], "a é", [2, 1, 0]),
        ([*PETS, ".cache/", "__MACOSX/", "cat/._0.jpg", "cat/Thumbs.db", "dog/.DS_Store",
          *(f"cat/{junk}/0.jpg" for junk in JUNK)], "cat dog", [4, 0, 0]),
    ],
)  # fmt: skip
def test_layouts(tmp_path, files, names, counts):
    layout(tmp_path, *files)
    source = load_dataset(tmp_path, validation_split=0)
    assert source.class_names == tuple(names.split()) and source.skipped == ()
    assert [size or 0 for size in sizes(source)] == counts


def test_a_test_directory_is_kept_apart(tmp_path):
    layout(tmp_path, *TRAIN, "test/dog/0.jpg")
    source = load_dataset(tmp_path, validation_split=0.5)
    assert sizes(source) == [2, 2, 1] and source.test.names() == ["test/dog/0.jpg"]


@pytest.mark.parametrize(
    "files, word, counts, names",
    [  # (files, a word of the error, images as splits, class names as classes)
        ("valid/dog/0.jpg test/dog/0.jpg more/0.jpg", "no train/", [0, 1, 1], "more test valid"),
        (" ".join([*TRAIN, "valid/dog/0.jpg", "more/0.jpg"]), "more/", [4, 1, 0],
         "more train valid"),
        # Names of COCO.
        ("train2017/a/0.jpg train2017/b/0.jpg val2017/a/0.jpg", "train2017/", [2, 1, 0],
         "train2017 val2017"),
    ],
)  # fmt: skip
def test_directories_that_could_be_splits_or_classes(tmp_path, files, word, counts, names):
    layout(tmp_path, *files.split())
    with pytest.raises(ValueError, match=f"could be splits or classes.*{word}.*splits=True"):
        load_dataset(tmp_path)
    splits, classes = (
        load_dataset(tmp_path, splits=splits, validation_split=0) for splits in (True, False)
    )
    assert [size or 0 for size in sizes(splits)] == counts
    assert classes.class_names == tuple(names.split())


@pytest.mark.skipif(os.name == "nt", reason="links and pipes")
def test_links_are_followed_once_and_what_is_no_file_is_counted(pets, tmp_path, caplog):
    shutil.copytree(pets / "dog", tmp_path / "elsewhere")
    (pets / "dog" / "more").symlink_to(tmp_path / "elsewhere")
    (pets / "dog" / "again").symlink_to(tmp_path / "elsewhere")
    (pets / "dog" / "more" / "cycle").symlink_to(pets / "dog")
    (pets / "dog" / "link.jpg").symlink_to(pets / "dog" / "0.jpg")
    (pets / "dog" / "up").symlink_to(pets)
    (pets / "cat" / "broken.jpg").symlink_to(tmp_path / "none.jpg")
    (pets / "dog" / "broken.jpg").symlink_to(tmp_path / "none.jpg")
    (pets / "dog" / "itself.jpg").symlink_to("itself.jpg")
    os.mkfifo(pets / "cat" / "pipe.jpg")
    source = load_dataset(pets, validation_split=0)
    assert counts(source.train) == [10, 20]
    assert {path.name for path in source.skipped} == {"broken.jpg", "itself.jpg", "pipe.jpg"}
    assert "4 images are no regular files or of formats" in caplog.text


LETTERS = st.characters(codec="utf-8", exclude_characters="/\\\0")
NAMES = st.text(LETTERS, max_size=20).map("n{}".format)  # Not hidden, and no number.
FILES = st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=8)


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names that are no text")
@given(FILES, st.sampled_from(["utf-8", "latin-1"]))
def test_files_of_any_names_keep_their_class(files, encoding):
    with tempfile.TemporaryDirectory() as directory:
        wanted = {}
        for name, file in files:
            name = name.encode(encoding, "replace")
            path = os.fsencode(directory) + b"/" + name
            os.makedirs(path, exist_ok=True)
            file = path + b"/" + file.encode(encoding, "replace") + b".jpg"
            open(file, "wb").close()
            wanted[os.fsdecode(file)] = text_of(os.fsdecode(name))
        assume(len({*wanted.values()}) > 1)
        source = load_dataset(directory, validation_split=0)
        split = source.train
        assert {
            str(path): source.class_names[label]
            for path, label in zip(split.images.keys, split.labels, strict=True)
        } == wanted
        # The list of held-out images is one line each, and names the same images.
        names = split.names()
        lines = "".join(f"{name}\n" for name in names).encode().decode().splitlines()
        held_out = load_dataset(directory, validation_split=lines[::2])
        assert lines == names and {*names[::2]} <= {*held_out.validation.names()}
        assert {*held_out.validation.names()}.isdisjoint(held_out.train.names())


@pytest.mark.skipif(os.name == "nt", reason="links")
@pytest.mark.parametrize("places", ["a b", "train/a train/b val/a val/b"])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=4))
def test_no_file_is_on_both_sides_of_a_split(places, links):
    places = places.split()
    with tempfile.TemporaryDirectory() as directory:
        root, readers = Path(directory, "root"), {}
        targets = [*map(root.joinpath, places), Path(directory, "elsewhere")]
        for target in targets:
            layout(target, "0.jpg", "1.jpg")
        for i, (place, target, whole) in enumerate(links):
            place, target = place % len(places), target % len(targets)
            readers.setdefault(target, {target} & {*range(len(places))}).add(place)
            link, target = targets[place] / f"{i + 2}.jpg", targets[target]
            link.with_suffix(".d" if whole else ".jpg").symlink_to(
                target if whole else target / "0.jpg"
            )
        if any(len(of) > 1 for of in readers.values()):
            with pytest.raises(ValueError, match="each image in one class and split"):
                load_dataset(root)
            return
        source = load_dataset(root, validation_split=0.5)
        paths = [*source.train.images.keys, *source.validation.images.keys]
        assert len(paths) == len({*map(os.path.realpath, paths)})


# Tables


def lines(header, *values, mark=","):
    """A table of the images of PETS."""
    return [header, *(f"{file}{mark}{value}" for file, value in zip(PETS, values, strict=True))]


SPLIT = ["cat/0.jpg,a,train", "cat/1.jpg,b,TRAIN", "dog/0.jpg,a,Val", "dog/1.jpg,b,test"]


@pytest.mark.parametrize(
    "lines, names, labels, others",
    [  # (lines of the table, class names, labels of training images, number of the others)
        (lines("File,Label", 10, 2, 2, 9), "2,9,10", [2, 0, 0, 1], 0),
        (lines("filename, cat, dog", *[" 1, 0"] * 4), "cat,dog", [[1, 0]] * 4, 0),
        (lines("file;label", *"aabb", mark=";"), "a,b", [0, 0, 1, 1], 0),
        (["sep=;", *lines("file;label", *"aabb", mark=";")], "a,b", [0, 0, 1, 1], 0),
        (lines("file\tlabel", *"aabb", mark="\t"), "a,b", [0, 0, 1, 1], 0),
        (lines("file , label", " a ", "a", '"b"', "b", mark=" ,"), "a,b", [0, 0, 1, 1], 0),
        ([*lines("file,label", *"aabb"), *lines("", *"aabb")], "a,b", [0, 0, 1, 1], 0),
        (["file,label", "cat\\0.jpg,a", "./dog/0.jpg,b"], "a,b", [0, 1], 0),
        (lines("file,label,is_valid", "a,False", "a,TRUE", "b,0", "b,1.0"), "a,b", [0, 1], 2),
        (lines("file,label,Subset", "a,Training", "a,dev", "b,TRAIN", "b,val"), "a,b", [0, 1], 2),
        (["file,label,split", *SPLIT], "a,b", [0, 1], 2),
        (lines("file,label", *["a big cat", "cat"] * 2), "a big cat,cat", [0, 1] * 2, 0),
        (lines("file,label", 1, 2.5, 3, 4), None, [1, 2.5, 3, 4], 0),
        (lines("file,label", "1.0", "0.0", 0, 1), "0,1", [1, 0, 0, 1], 0),
        (lines("path,label", "23.0", "31.0", 9, 9), None, [23, 31, 9, 9], 0),
        (lines("image,tags", "a;b", "", "b", " b ; a"), "a,b", [[1, 1], [0, 0], [0, 1], [1, 1]], 0),
        (["image_id,file_name,label", "1,cat/0.jpg,(a)", "2,dog/0.jpg,b"], "(a),b", [0, 1], 0),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_as_people_have_them(tmp_path, lines, names, labels, others, encoding):
    layout(tmp_path, *PETS)
    (tmp_path / "t.CSV").write_text("\n".join(lines), encoding)
    source = load_dataset(tmp_path / "t.CSV", validation_split=0)
    assert source.class_names == (names and tuple(names.split(",")))
    assert source.train.labels.tolist() == labels and source.train.names()[0] == PETS[0]
    assert sum(size or 0 for size in sizes(source)[1:]) == others


def test_labels_are_separated_by_what_is_asked_for(pets):
    for mark, separator in (("|", "|"), (" ", " "), (";", None), ("|", ";")):
        rows = ["file,label", f"cat/0.jpg,a{mark}b", "cat/1.jpg,b", "dog/0.jpg,c"]
        (pets / "t.csv").write_text("\n".join(rows))
        source = load_dataset(pets / "t.csv", validation_split=0, separator=separator)
        several = mark == (separator or ";")
        assert source.class_names == (("a", "b", "c") if several else ("a|b", "b", "c"))
        assert source.train.labels.ndim == 1 + several


def test_a_data_frame_is_a_table(pets, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(pets)
    frame = pandas.DataFrame({"file": PETS, "label": [10, 10, 9, 9], "is_valid": [False, True] * 2})
    source = load_dataset(frame)
    assert source.class_names == ("9", "10") and source.train.labels.tolist() == [1, 0]
    assert source.validation.names() == ["cat/1.jpg", "dog/1.jpg"]


CELLS = NAMES.filter(lambda name: name == name.strip())  # Spaces around a value mean nothing.


@given(st.dictionaries(CELLS, CELLS, min_size=2), st.sampled_from(",;\t"))
def test_a_table_of_any_names_keeps_its_labels(label_of, mark):
    assume(len({*label_of.values()}) > 1)
    with tempfile.TemporaryDirectory() as directory:
        for file in label_of:
            Path(directory, file).touch()
        path = Path(directory, "t.csv")
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=mark).writerows([("file", "label"), *label_of.items()])
        source = load_dataset(path, validation_split=0, separator="/")
        found = zip(source.train.images.keys, source.train.labels, strict=True)
        found = {path.name: source.class_names[label] for path, label in found}
        assert found == {file: text_of(label) for file, label in label_of.items()}


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


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x[5:, ::-1, :4], lambda x: x[..., :1]])
def test_a_memory_map_is_opened_and_not_copied_by_another_process(tmp_path, change):
    images = np.random.default_rng(0).integers(256, size=(400, 16, 16, 3), dtype="uint8")
    np.save(tmp_path / "images.npy", images)
    mapped = change(np.load(tmp_path / "images.npy", mmap_mode="r"))
    split = load_dataset((mapped, np.arange(len(mapped)) % 2), validation_split=0).train
    assert np.shares_memory(split.images.array, mapped)
    sent = pickle.dumps(split)
    assert len(sent) < 20_000
    for again in (pickle.loads(sent), pickle.loads(pickle.dumps(pickle.loads(sent)))):
        np.testing.assert_array_equal(again.images, change(images))
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


def test_an_npz_file_that_expands_too_far_is_refused(tmp_path, monkeypatch):
    images = np.zeros((400, 32, 32, 3), "uint8")
    np.savez_compressed(tmp_path / "set.npz", x_train=images, y_train=np.arange(400) % 2)
    assert load_dataset(tmp_path / "set.npz").train.size
    monkeypatch.setattr(array_sources, "MAX_SMALL", 1 << 20)
    with pytest.raises(OSError, match="expand to 1,232,"):
        load_dataset(tmp_path / "set.npz")


# The sample of Fashion-MNIST


def test_the_sample_is_as_its_readme_says():
    source = load_dataset("fashion_mnist")
    for split, count in ((source.train, 450), (source.validation, 50), (source.test, 100)):
        assert np.asarray(split.images).shape == (10 * count, 28, 28, 1)
        assert counts(split) == [count] * 10
    assert source.class_names[9] == "Ankle boot"
    stated = re.search(r"`sample.npz`:\s+`([0-9a-f]{64})`", README)[1]
    assert hashlib.sha256(FASHION_MNIST.read_bytes()).hexdigest() == stated
