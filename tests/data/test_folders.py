import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import load_dataset
from keras_vitx.data.sources import folders
from keras_vitx.data.sources.folders import image_files, unreadable

pytestmark = pytest.mark.backend_free


def names(split):
    return {str(path.relative_to(path.parents[1])) for path in split.images.paths}


def break_some(folder):
    """Truncate a JPEG, and give a text file the name of an image."""
    broken = folder / "cat" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    text = folder / "dog" / "text.jpg"
    text.write_text("no image")
    return {broken, text}


def test_sub_folders_are_classes_and_split_alike(pets):
    source = load_dataset(pets, validation_split=0.2)
    assert source.class_names == ("cat", "dog")
    assert np.bincount(source.train.labels).tolist() == [8, 8]
    assert np.bincount(source.validation.labels).tolist() == [2, 2]
    assert source.train.labels.dtype == np.int32
    assert source.train.size == len(source.train.images) == 16
    assert not set(source.train.images.paths) & set(source.validation.images.paths)
    assert source.skipped == ()
    for split in (source.train, source.validation):
        for path, label in zip(split.images.paths, split.labels, strict=True):
            assert path.relative_to(pets).parts[0] == source.class_names[label]


def test_the_seed_decides_the_split(pets):
    def validation(seed):
        return load_dataset(str(pets), seed=seed, validation_split=0.3).validation.images.paths

    assert validation(1) == validation(1)
    assert validation(1) != validation(2)


@pytest.mark.parametrize(
    "train, validation",
    [("train", "val"), ("Train", "Val"), ("training", "validation"), ("train", "valid"),
     ("TRAIN", "dev"), ("train", "eval")],
)  # fmt: skip
def test_train_and_validation_folders_are_the_split(pets, tmp_path, train, validation):
    root = tmp_path / "root"
    shutil.copytree(pets, root / train)
    shutil.copytree(pets / "dog", root / validation / "dog")
    (root / "annotations").mkdir()
    (root / "annotations" / "boxes.json").write_text("{}")
    source = load_dataset(root)
    assert source.class_names == ("cat", "dog")
    assert source.train.size == 20 and source.test is None
    assert source.validation.labels.tolist() == [1] * 10


def test_a_test_folder_is_kept_apart(pets, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(pets, root / "train")
    shutil.copytree(pets / "dog", root / "test" / "dog")
    source = load_dataset(root)
    assert [source.train.size, source.validation.size, source.test.size] == [18, 2, 10]
    assert {path.relative_to(root).parts[0] for path in source.test.images.paths} == {"test"}
    assert load_dataset(root, validation_split=0).validation is None
    shutil.copytree(pets / "cat", root / "val" / "cat")
    source = load_dataset(root)
    assert [source.train.size, source.validation.size, source.test.size] == [20, 10, 10]
    shutil.copytree(pets / "cat", root / "validation" / "cat")
    with pytest.raises(ValueError, match="either val/ or validation/"):
        load_dataset(root)


def test_folders_that_could_be_splits_or_classes(pets, tmp_path):
    root = tmp_path / "root"
    for name in ("train", "valid", "test"):
        shutil.copytree(pets, root / name)
    shutil.copytree(pets / "dog", root / "more")
    with pytest.raises(ValueError, match=r"more/ .* could be splits or classes.*splits=True"):
        load_dataset(root)
    source = load_dataset(root, splits=True)
    assert [source.train.size, source.validation.size, source.test.size] == [20, 20, 20]
    assert source.class_names == ("cat", "dog")
    assert load_dataset(root, splits=False).class_names == ("more", "test", "train", "valid")
    shutil.rmtree(root / "train")
    with pytest.raises(ValueError, match="There is no train/"):
        load_dataset(root)
    # A train and a bus are classes.
    for name in ("train", "bus"):
        shutil.copytree(pets / "dog", tmp_path / "vehicles" / name, ignore=lambda *_: ["deep"])
    assert load_dataset(tmp_path / "vehicles").class_names == ("bus", "train")


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


def test_opening_reads_no_file(pets, monkeypatch):
    break_some(pets)
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("a file is read"))
    source = load_dataset(pets)
    assert source.train.size + source.validation.size == 21 and source.skipped == ()


def test_broken_images_are_found_by_a_check(pets, save, picture):
    broken = break_some(pets)
    short = save(pets / "cat" / "short.png", picture(60, 60))
    short.write_bytes(short.read_bytes()[:-3000])
    errors = unreadable(image_files(pets))
    assert errors.keys() == {*broken, short}
    assert "text.jpg can't be decoded" in str(errors[pets / "dog" / "text.jpg"])


def test_files_that_pillow_can_not_read_are_counted(pets, monkeypatch, caplog):
    (pets / "cat" / "IMG_1.HEIC").write_bytes(b"of a phone")
    (pets / "dog" / "raw.cr2").write_bytes(b"of a camera")
    monkeypatch.setattr(folders, "readable_suffixes", lambda: {".jpg", ".png"})
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
    if suffix not in folders.readable_suffixes():
        pytest.skip(f"this Pillow does not read {suffix}")
    path = pets / "cat" / f"x{suffix}"
    Image.fromarray(picture(32, 32)).save(path, kind)
    train = load_dataset(pets, validation_split=0).train
    assert train.images[train.images.paths.index(path)].shape == (32, 32, 3)


def test_hidden_folders_and_files_are_no_classes(pets):
    (pets / ".cache").mkdir()
    (pets / "__MACOSX").mkdir()
    (pets / "cat" / "._1.jpg").write_text("what a Mac leaves")
    source = load_dataset(pets)
    assert source.class_names == ("cat", "dog") and source.skipped == ()


def remove_dogs(pets):
    shutil.rmtree(pets / "dog")


def remove_all(pets):
    shutil.rmtree(pets)
    pets.mkdir()


def add_a_class_without_images(pets):
    (pets / "fish").mkdir()
    (pets / "fish" / "bad.txt").write_bytes(b"bad")


def move_below_train(pets):
    for name in ("cat", "dog"):
        (pets / name).rename(pets.parent / name)
    for name in ("cat", "dog"):
        shutil.copytree(pets.parent / name, pets / "train" / name)
    shutil.move(pets.parent / "dog", pets / "val" / "wolf")


@pytest.mark.parametrize(
    "change, message",
    [
        (remove_all, "0 class folders .* one sub-folder per class"),
        (remove_dogs, "1 class folders .* one sub-folder per class"),
        (add_a_class_without_images, "no readable image in .*fish"),
        (move_below_train, "lacks: wolf"),
    ],
)
def test_a_wrong_layout_is_named(pets, change, message):
    change(pets)
    with pytest.raises(ValueError, match=message):
        load_dataset(pets)
