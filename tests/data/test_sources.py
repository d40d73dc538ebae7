"""Directories, tables, arrays and the sample of Fashion-MNIST as labeled sets of images."""

import hashlib
import logging
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import load_dataset
from keras_vitx.data.sources import arrays as array_sources
from keras_vitx.data.sources import directories
from keras_vitx.data.sources.arrays import FASHION_MNIST
from keras_vitx.data.sources.directories import image_files, unreadable

pytestmark = pytest.mark.backend_free
README = FASHION_MNIST.with_name("README.md").read_text("utf-8")


@pytest.fixture
def arrays():
    """40 images of four classes."""
    random = np.random.default_rng(0)
    return random.integers(256, size=(40, 6, 5, 3), dtype="uint8"), np.arange(40) % 4


def sizes(source):
    splits = source.train, source.validation, source.test
    return [None if split is None else split.size for split in splits]


def counts(split):
    return np.bincount(split.labels).tolist()


# The split


def test_a_part_of_each_class_is_held_out_by_the_seed(pets, arrays):
    for source, names, train, validation in (
        (pets, ("cat", "dog"), [8] * 2, [2] * 2),
        (arrays, ("0", "1", "2", "3"), [8] * 4, [2] * 4),
    ):
        first, again, other = (
            load_dataset(source, validation_split=0.2, seed=seed) for seed in (1, 1, 2)
        )
        assert first.class_names == names and first.skipped == () and first.test is None
        assert (counts(first.train), counts(first.validation)) == (train, validation)
        assert first.train.labels.dtype == np.int32
        held_out = first.validation.names()
        assert held_out == again.validation.names() != other.validation.names()
        whole = load_dataset(source, validation_split=0)
        assert sorted(held_out + first.train.names()) == sorted(whole.train.names())
        label_of = dict(zip(whole.train.names(), whole.train.labels, strict=True))
        for split in (first.train, first.validation):
            assert [label_of[name] for name in split.names()] == split.labels.tolist()
    one_hot = load_dataset((arrays[0], np.eye(4)[arrays[1]]), validation_split=0.2, seed=2)
    np.testing.assert_array_equal(one_hot.validation.images, other.validation.images)


def test_named_images_are_held_out(pets, caplog):
    names = load_dataset(pets, seed=5).validation.names()
    assert all(name.startswith(("cat/", "dog/")) for name in names)
    shutil.copy(pets / "cat" / "0.jpg", pets / "cat" / "00.jpg")  # would shift a random split
    source = load_dataset(pets, validation_split=names)
    assert source.validation.names() == names and source.train.size == 21 - len(names)
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        load_dataset(pets, validation_split=[*names, "cat/gone.jpg"])
    assert "1 held-out images are no longer in the source: cat/gone.jpg" in caplog.text
    with pytest.raises(ValueError, match="`validation_split` must name images"):
        load_dataset(pets, validation_split=["cat/gone.jpg"])


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
    with pytest.raises(ValueError, match=r'`source` .*"fashion_mnist", "tfds:NAME", a directory'):
        load_dataset(source)


# Directories


@pytest.fixture
def root(pets, tmp_path):
    """A function that copies classes to directories of splits, and returns their parent."""

    def root(**classes):
        for split, name in classes.items():
            shutil.copytree(pets / name, tmp_path / "root" / split / name)
        return tmp_path / "root"

    return root


@pytest.mark.parametrize(
    "train, validation",
    [("train", "val"), ("Train", "Val"), ("training", "validation"), ("train", "valid"),
     ("TRAIN", "dev"), ("train", "eval")],
)  # fmt: skip
def test_directories_of_splits(root, train, validation):
    directory = root(**{train: "", validation: "dog"})
    (directory / "annotations").mkdir()
    (directory / "annotations" / "boxes.json").write_text("{}")
    source = load_dataset(directory)
    assert source.class_names == ("cat", "dog") and sizes(source) == [20, 10, None]
    assert set(source.validation.labels) == {1}


def test_a_test_directory_is_kept_apart(root):
    source = load_dataset(root(train="", test="dog"))
    assert sizes(source) == [18, 2, 10]
    assert all(name.startswith("test/dog/") for name in source.test.names())
    assert load_dataset(root(), validation_split=0).validation is None
    assert sizes(load_dataset(root(val="cat"))) == [20, 10, 10]
    with pytest.raises(ValueError, match="either val/ or validation/"):
        load_dataset(root(validation="cat"))


def test_directories_that_could_be_splits_or_classes(pets, root):
    directory = root(train="", valid="", test="")
    shutil.copytree(pets / "dog", directory / "more")
    with pytest.raises(ValueError, match=r"could be splits or classes.* more/ .*splits=True"):
        load_dataset(directory)
    source = load_dataset(directory, splits=True)
    assert source.class_names == ("cat", "dog") and sizes(source) == [20, 20, 20]
    assert load_dataset(directory, splits=False).class_names == ("more", "test", "train", "valid")
    shutil.rmtree(directory / "train")
    with pytest.raises(ValueError, match="There is no train/"):
        load_dataset(directory)
    # Kaggle's, COCO's names.
    for train, test in (("training_set", "test_set"), ("train2017", "val2017")):
        directory = root(**{train: "", test: "dog"})
        for name in ("more", "valid", "test"):
            shutil.rmtree(directory / name, ignore_errors=True)
        with pytest.raises(ValueError, match=f"None, for .*{train}/.*splits=True"):
            load_dataset(directory)
        assert sorted(filter(None, sizes(load_dataset(directory, splits=True))))[0] < 20
        assert load_dataset(directory, splits=False).class_names == tuple(sorted((train, test)))
        shutil.rmtree(directory)
    # A train and a bus are classes.
    (pets / "cat").rename(pets / "train")
    shutil.rmtree(pets / "train" / "deep")
    assert load_dataset(pets).class_names == ("dog", "train")


def test_opening_reads_no_file_and_a_check_finds_broken_ones(pets, save, picture, monkeypatch):
    short = save(pets / "cat" / "short.png", picture(60, 60))
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
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        source = load_dataset(pets)
    assert len(caplog.records) == 1 and "2 images" in caplog.text and ".cr2, .heic" in caplog.text
    assert {path.name for path in source.skipped} == {"IMG_1.HEIC", "raw.cr2"}
    with pytest.raises(OSError, match=r"2 images .* such as .*IMG_1\.HEIC"):
        load_dataset(pets, strict=True)


@pytest.mark.parametrize(
    "suffix, kind", [(".jfif", "JPEG"), (".jp2", "JPEG2000"), (".avif", "AVIF")]
)
def test_whatever_pillow_reads_is_read(pets, picture, suffix, kind):
    if suffix not in directories.readable_suffixes():
        pytest.skip(f"this Pillow does not read {suffix}")
    path = pets / "cat" / f"x{suffix}"
    Image.fromarray(picture(32, 32)).save(path, kind)
    train = load_dataset(pets, validation_split=0).train
    assert train.images[train.images.paths.index(path)].shape == (32, 32, 3)


def test_hidden_directories_and_files_are_no_classes(pets):
    (pets / ".cache").mkdir()
    (pets / "__MACOSX").mkdir()
    (pets / "cat" / "._1.jpg").write_text("what a Mac leaves")
    source = load_dataset(pets)
    assert source.class_names == ("cat", "dog") and source.skipped == ()


@pytest.mark.parametrize(
    "files, message",
    [
        ([], "0 class directories .* one sub-directory per class"),
        (["cat/0.jpg"], "1 class directories .* one sub-directory per class"),
        (["cat/0.jpg", "fish/bad.txt"], "1 class directories"),
        (["cat/0.jpg", "dog/0.jpg", "fish/x.cr2"], "readable image .* none of fish"),
        (["1/0.jpg", "01/0.jpg"], "different numbers. Received: 01, 1"),
        (["train/cat/0.jpg", "train/dog/0.jpg", "val/wolf/0.jpg"], "with wolf"),
    ],
)
def test_a_wrong_layout_is_named(tmp_path, files, message):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("not read")
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path)


PETS = [f"{name}/{i}.jpg" for name in ("cat", "dog") for i in range(2)]
TRAIN = [f"train/{file}" for file in PETS]


@pytest.mark.parametrize(
    "files, names, counts",
    [  # (files beside those of PETS or TRAIN, class names, images of train, validation, test)
        ([*TRAIN, "test/0.jpg", "test/1.jpg"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "test/unknown/0.jpg"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "test/"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "val/"], "cat dog", [4, 0, 0]),
        ([*TRAIN, "val/cat/0.jpg", "val/owl/", "train/owl/"], "cat dog", [4, 1, 0]),
        ([*TRAIN, "test/dog/0.jpg", "notes.tfrecord.txt"], "cat dog", [4, 0, 1]),
        (["test/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [0, 0, 2]),
        (["val/cat/0.jpg", "test/dog/0.jpg"], "cat dog", [0, 1, 1]),
        ([*PETS, "owl/", "0.jpg", "$RECYCLE.BIN/0.jpg", "lost+found/0.jpg"], "cat dog", [4, 0, 0]),
        ([f"{i}/0.jpg" for i in range(12)], " ".join(map(str, range(12))), [12, 0, 0]),
        (["002/0.jpg", "10/0.jpg", "1/0.jpg"], "1 002 10", [3, 0, 0]),
        (["train/é/0.jpg", "train/a/0.jpg", "val/e\u0301/0.jpg"], "a é", [2, 1, 0]),
        ([*PETS, *(f"cat/{junk}/0.jpg" for junk in (
            ".ipynb_checkpoints", "@eaDir", "deep/@eaDir/0.jpg", ".Trash-1000/files", "__MACOSX",
            "$Recycle.Bin", "#recycle", "System Volume Information",
        )), "cat/._0.jpg", "cat/Thumbs.db", "dog/.DS_Store"], "cat dog", [4, 0, 0]),
    ],
)  # fmt: skip
def test_layouts(tmp_path, files, names, counts):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).mkdir(exist_ok=True) if file.endswith("/") else (
            tmp_path / file
        ).write_text("not read")
    source = load_dataset(tmp_path, validation_split=0)
    assert source.class_names == tuple(names.split())
    assert [size or 0 for size in sizes(source)] == counts


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
    assert counts(source.train) == [10, 21]
    assert {path.name for path in source.skipped} == {"broken.jpg", "itself.jpg", "pipe.jpg"}
    assert "4 images are no regular files or of formats" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="links")
@pytest.mark.parametrize(
    "link, target",
    [("puma", "cat"), ("dog/more", "cat"), ("cat/more", "dog/deep"), ("dog/x.jpg", "cat/0.jpg")],
)
def test_a_link_that_gives_an_image_two_classes_is_named(pets, link, target):
    (pets / link).symlink_to(pets / target)
    with pytest.raises(ValueError, match=f"each image in one class.*{target} in "):
        load_dataset(pets)


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names that are no text")
def test_names_of_any_bytes_are_lines_of_text(pets):
    for name in (b"caf\xe9.jpg", b"a\nb.jpg", "\u2028c.jpg".encode(), b"d\x0be.jpg"):
        shutil.copy(pets / "cat" / "0.jpg", os.fsencode(pets / "cat") + b"/" + name)
    os.rename(pets / "cat", os.fsencode(pets) + b"/ch\xe2t")
    names = load_dataset(pets, validation_split=0).train.names()
    text = "".join(f"{name}\n" for name in names).encode().decode()
    assert text.splitlines() == names and len(set(names)) == 24
    held_out = [name for name in names if "\\" in name]
    source = load_dataset(pets, validation_split=held_out)
    assert source.validation.names() == held_out and source.class_names == ("ch\\udce2t", "dog")
    assert source.validation.images[0].shape[-1] == 3


def test_a_split_that_is_not_what_was_asked_for_is_said(arrays, caplog):
    load_dataset((arrays[0], np.arange(40) // 2), validation_split=0.1)
    assert "20 of 40 images are held out, not 0.1 of them" in caplog.text
    caplog.clear()
    load_dataset(arrays, validation_split=0.1)
    assert not caplog.records


def test_a_memory_mapped_array_stays_in_its_file(arrays, tmp_path):
    images = np.memmap(tmp_path / "x", "float32", "w+", shape=arrays[0].shape)
    images[:] = arrays[0] / 255
    source = load_dataset((images, arrays[1]), validation_split=0.2)
    for split in (source.train, source.validation):
        assert np.shares_memory(split.images.array, images) and len(split.images) == split.size
        np.testing.assert_array_equal(split.images, arrays[0][split.images.keys])
        np.testing.assert_array_equal(split.images[2], arrays[0][split.images.keys[2]])


# Tables


def lines(header, *values, mark=","):
    """A table of the images of PETS."""
    return [header, *(f"{file}{mark}{value}" for file, value in zip(PETS, values, strict=True))]


@pytest.mark.parametrize(
    "lines, names, labels, validation",
    [  # (lines of the table, class names, labels of training images, number of the others)
        (lines("file,label", 10, 2, 2, 9), "2,9,10", [2, 0, 0, 1], 0),
        (lines("filename, cat, dog", *[" 1, 0"] * 4), "cat,dog", [[1, 0]] * 4, 0),
        (lines("file;label", *"aabb", mark=";"), "a,b", [0, 0, 1, 1], 0),
        (["sep=;", *lines("file;label", *"aabb", mark=";")], "a,b", [0, 0, 1, 1], 0),
        (lines("file\tlabel", *"aabb", mark="\t"), "a,b", [0, 0, 1, 1], 0),
        (lines("file , label", " a ", "a", '"b"', "b", mark=" ,"), "a,b", [0, 0, 1, 1], 0),
        ([*lines("file,label", *"aabb"), *lines("", *"aabb")], "a,b", [0, 0, 1, 1], 0),
        (["file,label", "cat\\0.jpg,a", "./dog/0.jpg,b"], "a,b", [0, 1], 0),
        (lines("file,label,is_valid", "a,False", "a,TRUE", "b,0", "b,1.0"), "a,b", [0, 1], 2),
        (lines("file,label,Subset", "a,Training", "a,dev", "b,TRAIN", "b,val"), "a,b", [0, 1], 2),
        (
            lines("file,label", *["a big cat", "a big dog"] * 2),
            "a big cat,a big dog",
            [0, 1] * 2,
            0,
        ),
        (lines("file,label", 1, 2.5, 3, 4), None, [1, 2.5, 3, 4], 0),
        (lines("file,label", "1.0", "0.0", 0, 1), "0,1", [1, 0, 0, 1], 0),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_as_people_have_them(pets, lines, names, labels, validation, encoding):
    (pets / "t.CSV").write_text("\n".join(lines), encoding)
    source = load_dataset(pets / "t.CSV", validation_split=0)
    assert source.class_names == (names and tuple(names.split(",")))
    assert source.train.labels.tolist() == labels
    assert (source.validation.size if source.validation else 0) == validation


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


@pytest.fixture
def table(pets):
    def table(*lines):
        (pets / "table.csv").write_text("\n".join(lines) + "\n")
        return load_dataset(pets / "table.csv", validation_split=0)

    return table


def test_tables(table):
    source = table("File,Label", "cat/0.jpg,cat", "cat/1.jpg,cat", "dog/0.jpg,dog")
    assert source.class_names == ("cat", "dog") and source.train.labels.tolist() == [0, 0, 1]
    assert source.train.names() == ["cat/0.jpg", "cat/1.jpg", "dog/0.jpg"]
    assert source.train.images[0].shape[-1] == 3
    source = table(
        "filename,tags,split",
        "cat/0.jpg,soft;gray,train",
        "cat/1.jpg,,train",
        "dog/0.jpg,loud,Val",
        "dog/1.jpg, loud ; soft,test",
    )
    assert source.class_names == ("gray", "loud", "soft")
    assert source.train.labels.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert source.validation.labels.tolist() == [[0, 1, 0]]
    assert source.test.labels.tolist() == [[0, 1, 1]]
    source = table("image,MEL,NV", "cat/0.jpg,1.0,0.0", "cat/1.jpg,0,1")
    assert source.class_names == ("MEL", "NV") and source.train.labels.tolist() == [[1, 0], [0, 1]]
    source = table("image_id,file_name,label", "1,cat/0.jpg,(cat)", "2,dog/0.jpg,dog")
    assert source.class_names == ("(cat)", "dog") and source.train.names()[0] == "cat/0.jpg"
    source = table("path,label", "cat/0.jpg,tabby cat", "cat/1.jpg,tabby", "dog/0.jpg,dog")
    assert source.class_names == ("dog", "tabby", "tabby cat")
    source = table("path,label", "cat/0.jpg,23.0", "cat/1.jpg,31.0")
    assert source.class_names is None and source.train.labels.tolist() == [23, 31]


@pytest.mark.parametrize(
    "lines, error, message",
    [
        ("a,b x,y", ValueError, r"a column `file`.*Received: the columns a, b"),
        ("file,label", ValueError, "0 rows"),
        ("file,label cat/none.jpg,a", OSError, "1 files that do not exist"),
        ("file,label cat/0.jpg,a", ValueError, "at least two classes"),
        ("file,label cat/0.jpg,a cat/1.jpg,", ValueError, "none in row 3"),
        ("file,label,split cat/0.jpg,a,later", ValueError, "Received: 'later'"),
        ("file,a,b cat/0.jpg,1,x", ValueError, "numbers in 0..1 .* with the columns a, b"),
        ("file,label cat/0.jpg,a cat/0.jpg,b", ValueError, "one label and split per file"),
        ("file,label,split cat/0.jpg,a,val ./cat/0.jpg,a,train", ValueError, "label and split per"),
        ("file,label cat/0.jpg,a|b cat/1.jpg,b", ValueError, r"`separator` must be .* 'a\|b'"),
        ("file,label cat/0.jpg,['a'] cat/1.jpg,['b']", ValueError, r"`separator` .* \"\['a'\]\""),
        ("file,label cat/0.jpg,[0;1] cat/1.jpg,[1;0]", ValueError, r"`separator` must be given"),
        ("file;label cat/0.jpg;a,b cat/1.jpg;a dog/0.jpg;b", ValueError, r"`separator`.*'a,b'"),
        ("file,class,label cat/0.jpg,pet,a", ValueError, "one column `label` or one per class"),
        ("file,label cat/0.jpg,a,b", ValueError, "3 values in line 2"),
        ("file,label cat/0.jpg", ValueError, "1 values in line 2"),
        ("file,label,label cat/0.jpg,a,b", ValueError, "3 different columns"),
        ("file,label,fold cat/0.jpg,a,0", ValueError, "column of splits.*Received: '0'"),
        ("file,label,is_train cat/0.jpg,a,0", ValueError, "column of splits.*Received: '0'"),
        ("file,label,is_valid cat/0.jpg,a,maybe", ValueError, "true or false in is_valid"),
        ("file,label,split cat/0.jpg,a,", ValueError, "column of splits.*Received: ''"),
        ("file,label cat/0.jpg,01 cat/1.jpg,1", ValueError, "different numbers"),
    ],
)
def test_wrong_tables_are_named(table, lines, error, message):
    with pytest.raises(error, match=message):
        table(*lines.split())


# Arrays


def test_pairs_are_the_splits_and_images_become_bytes(arrays, tmp_path):
    images, labels = arrays
    gray = images[..., 0] / 255
    source = load_dataset(((gray[:30], labels[:30, None]), (gray[30:], labels[30:])))
    np.testing.assert_array_equal(source.train.images, images[:30, ..., :1])
    np.testing.assert_array_equal(source.train.labels, labels[:30])
    np.testing.assert_array_equal(source.validation.labels, labels[30:])
    path = tmp_path / "set.npz"
    parts = {"x_train": images, "y_train": labels, "x_test": images[:8], "y_test": labels[:8]}
    np.savez(path, **parts)
    assert sizes(load_dataset(str(path), validation_split=0.25)) == [32, 8, 8]
    medmnist = {"train_images": images, "train_labels": labels[:, None]}
    np.savez(path, **medmnist, val_images=images[:9], val_labels=labels[:9, None])
    assert sizes(load_dataset(path)) == [40, 9, None]
    np.savez(path, test_images=images, test_labels=labels[:, None])
    assert sizes(load_dataset(path)) == [None, None, 40]
    np.savez(path, **parts, x_val=images[8:12], y_val=labels[8:12])
    for given in (path, (arrays, (images[8:12], labels[8:12]), (images[:8], labels[:8]))):
        source = load_dataset(given)
        assert sizes(source) == [40, 4, 8]
        np.testing.assert_array_equal(source.validation.images, images[8:12])
        np.testing.assert_array_equal(source.test.images, images[:8])


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x[5:, ::-1, :4], lambda x: x[..., :1]])
def test_a_memory_map_is_opened_and_not_copied_by_another_process(tmp_path, change):
    images = np.random.default_rng(0).integers(256, size=(400, 16, 16, 3), dtype="uint8")
    np.save(tmp_path / "images.npy", images)
    mapped = change(np.load(tmp_path / "images.npy", mmap_mode="r"))
    split = load_dataset((mapped, np.arange(len(mapped)) % 2), validation_split=0).train
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
def test_labels_of_every_form(arrays, labels, classes):
    source = load_dataset((arrays[0], labels), validation_split=0.2)
    assert source.class_names == (classes and tuple(map(str, range(classes))))
    of_classes = classes and labels.ndim == 1
    for split in (source.train, source.validation):
        assert split.labels.dtype == (np.int32 if of_classes else np.float32)
        wanted = labels[split.images.keys].astype("float32")
        np.testing.assert_array_equal(split.labels, wanted.reshape(split.labels.shape))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (x, [0, 1, -2, 3] * 10), "Received: -2"),
        (lambda x, y: (x, [0, 1, np.nan, 3] * 10), "Received: nan"),
        (lambda x, y: (x, [[0, np.inf]] * 40), "Received: inf"),
        (lambda x, y: (x, [0, 1, 2]), "3 labels for 40 images"),
        (lambda x, y: (x, ["cat", "dog"] * 20), "integers or floats. Received: 'cat', 'dog'"),
        (lambda x, y: (x, np.zeros((40, 2, 2))), r"Received: shape \(40, 2, 2\)"),
        (lambda x, y: (x, [0, 2**40] * 20), str(2**40)),
        (lambda x, y: (x, [7] * 40), "every label is 7"),
        (lambda x, y: (x[0], y), "shape|2 labels|labels for"),
        (lambda x, y: (x[:0], y), "not empty"),
        (lambda x, y: (x.astype("int64"), y), "Received: int64"),
        (lambda x, y: (x.astype("float32"), y), r"Received: float32 in 0\.\.255"),
        (lambda x, y: ([np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], y), "one size"),
        (lambda x, y: ((x, y), (x, np.eye(4)[y])), r"one form .* int32 .* float32 \(40, 4\)"),
    ],
)
def test_wrong_arrays_are_named(arrays, change, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(change(*arrays))


@pytest.mark.parametrize(
    "content, error, message",
    [
        ({"images": 0, "labels": 1}, ValueError, "x_train and .* Received: images, labels"),
        ({"x_train": 0, "y_train": 1, "x_test": 0}, ValueError, "x_test, x_train, y_train"),
        ({"train_images": 0}, ValueError, "train_labels.*Received: train_images"),
        ({"x_train": 0, "y_train": 1, "class_names": 2}, ValueError, r"in 0\.\.2\. Received: 3"),
        (b"", OSError, r"set\.npz can't be read"),
        (b"nothing of the kind", OSError, r"set\.npz can't be read"),
        (b"PK\x03\x04 cut", OSError, r"set\.npz can't be read"),
    ],
)
def test_a_wrong_npz_file_is_named(arrays, tmp_path, content, error, message):
    path, values = tmp_path / "set.npz", (*arrays, ["a", "b", "c"])
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **{key: values[index] for key, index in content.items()})
    with pytest.raises(error, match=message):
        load_dataset(path)


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
    assert source.class_names[0] == "T-shirt/top" and source.class_names[9] == "Ankle boot"
    assert len({image.tobytes() for image in source.train.images}) == 4500
    directory = FASHION_MNIST.parent
    assert sum(file.stat().st_size for file in directory.glob("*.*")) <= 3_000_000
    assert "MIT" in (directory / "LICENSE").read_text("utf-8")
    stated = re.search(r"`sample.npz`:\s+`([0-9a-f]{64})`", README)[1]
    assert hashlib.sha256(FASHION_MNIST.read_bytes()).hexdigest() == stated


def test_the_code_of_the_readme_draws_the_same_arrays(tmp_path, monkeypatch):
    directory = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
    if not Path(directory, "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"the full Fashion-MNIST is not in {directory}")
    monkeypatch.chdir(tmp_path)
    code = re.search("```python\n(.*?)```", README, re.DOTALL)[1]
    exec(code.replace("/usr/share/datasets/fashion-mnist", directory))
    with np.load("sample.npz") as again, np.load(FASHION_MNIST) as shipped:
        assert sorted(again.files) == sorted(shipped.files)
        for name in shipped.files:
            np.testing.assert_array_equal(again[name], shipped[name])
