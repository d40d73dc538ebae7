import logging
import shutil

import numpy as np
import pytest

from keras_vitx.data import open_source

pytestmark = pytest.mark.backend_free


def names(part):
    return {str(path.relative_to(path.parents[1])) for path in part.images.paths}


def break_some(folder):
    """Truncate a JPEG, and give a text file the name of an image."""
    broken = folder / "cat" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    text = folder / "dog" / "text.jpg"
    text.write_text("no image")
    return {broken, text}


def test_sub_folders_are_classes_and_split_alike(pets):
    source = open_source(pets, validation_split=0.2)
    assert source.class_names == ("cat", "dog")
    assert np.bincount(source.train.labels).tolist() == [8, 8]
    assert np.bincount(source.validation.labels).tolist() == [2, 2]
    assert source.train.labels.dtype == np.int32
    assert source.train.size == len(source.train.images) == 16
    assert not set(source.train.images.paths) & set(source.validation.images.paths)
    assert source.skipped == ()
    for part in (source.train, source.validation):
        for path, label in zip(part.images.paths, part.labels, strict=True):
            assert path.relative_to(pets).parts[0] == source.class_names[label]


def test_the_seed_decides_the_split(pets):
    def validation(seed):
        return open_source(str(pets), seed=seed, validation_split=0.3).validation.images.paths

    assert validation(1) == validation(1)
    assert validation(1) != validation(2)


def test_every_image_is_given_as_rgb(pets):
    source = open_source(pets)
    for part in (source.train, source.validation):
        for image in part.images:
            assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[-1] == 3


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_train_and_validation_folders_are_the_split(pets, tmp_path, validation):
    root = tmp_path / "root"
    shutil.copytree(pets, root / "train")
    shutil.copytree(pets / "dog", root / validation / "dog")
    source = open_source(root)
    assert source.class_names == ("cat", "dog")
    assert source.train.size == 20 and source.test is None
    assert source.validation.labels.tolist() == [1] * 10


def test_a_test_folder_is_kept_apart(pets, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(pets, root / "train")
    shutil.copytree(pets / "dog", root / "test" / "dog")
    source = open_source(root)
    assert [source.train.size, source.validation.size, source.test.size] == [18, 2, 10]
    assert {path.relative_to(root).parts[0] for path in source.test.images.paths} == {"test"}
    assert open_source(root, validation_split=0).validation is None
    shutil.copytree(pets / "cat", root / "val" / "cat")
    source = open_source(root)
    assert [source.train.size, source.validation.size, source.test.size] == [20, 10, 10]
    shutil.copytree(pets / "cat", root / "validation" / "cat")
    with pytest.raises(ValueError, match="either val/ or validation/"):
        open_source(root)


def test_a_validation_class_that_training_lacks_is_an_error(pets, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(pets, root / "train")
    shutil.copytree(pets / "dog", root / "val" / "wolf")
    with pytest.raises(ValueError, match="lacks: wolf"):
        open_source(root)


def test_a_train_folder_alone_is_split(pets, tmp_path):
    shutil.copytree(pets, tmp_path / "root" / "train")
    source = open_source(tmp_path / "root")
    assert (source.train.size, source.validation.size) == (18, 2)


def test_broken_images_are_skipped_with_one_log_line(pets, caplog):
    broken = break_some(pets)
    with caplog.at_level(logging.WARNING, "keras_vitx"):
        source = open_source(pets)
    assert set(source.skipped) == broken
    assert source.train.size + source.validation.size == 19
    assert len(caplog.records) == 1
    assert "2 images" in caplog.text and str(pets / "cat" / "0.jpg") in caplog.text
    for part in (source.train, source.validation):
        assert all(image.size for image in part.images)


def test_strict_names_the_broken_image(pets):
    break_some(pets)
    with pytest.raises(OSError, match=r"cat/0\.jpg can't be decoded"):
        open_source(pets, strict=True)


def test_a_png_cut_short_is_found(pets, save, picture):
    path = save(pets / "cat" / "short.png", picture(60, 60))
    path.write_bytes(path.read_bytes()[:-3000])
    assert open_source(pets).skipped == (path,)


def test_an_empty_folder_says_what_is_expected(tmp_path):
    with pytest.raises(ValueError, match=r"0 class folders .* one sub-folder per class"):
        open_source(tmp_path)


def test_a_single_class_says_what_is_expected(pets):
    shutil.rmtree(pets / "dog")
    with pytest.raises(ValueError, match=r"1 class folders .* one sub-folder per class"):
        open_source(pets)


def test_a_class_without_images_is_named(pets):
    (pets / "fish").mkdir()
    (pets / "fish" / "bad.png").write_bytes(b"bad")
    with pytest.raises(ValueError, match=r"no readable image in .*fish"):
        open_source(pets)


def test_hidden_folders_and_files_are_no_classes(pets):
    (pets / ".cache").mkdir()
    (pets / "__MACOSX").mkdir()
    (pets / "cat" / "._1.jpg").write_text("what a Mac leaves")
    source = open_source(pets)
    assert source.class_names == ("cat", "dog") and source.skipped == ()
