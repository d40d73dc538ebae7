import numpy as np
import pytest

from keras_vitx.data import batches_of_files, preprocess_input

pytestmark = pytest.mark.backend_free


def test_files_come_batch_by_batch_and_broken_ones_as_errors(tmp_path, picture, save, make_model):
    model = make_model((16, 24), crop_ratio=0.9)
    good = [save(tmp_path / f"{i}.png", picture(20 + i, 30, seed=i)) for i in range(4)]
    broken = [tmp_path / "text.png", tmp_path / "missing.png", tmp_path / "cut.png"]
    broken[0].write_text("no image")
    broken[2].write_bytes(good[0].read_bytes()[:90])
    batches = list(batches_of_files([*good[:2], *broken, *good[2:]], model, batch_size=3))

    assert [len(batch.paths) for batch in batches] == [2, 1, 1]
    assert [path for batch in batches for path in batch.paths] == good
    images = np.concatenate([batch.images for batch in batches])
    np.testing.assert_array_equal(images, preprocess_input(good, model))
    errors = {path: error for batch in batches for path, error in batch.errors.items()}
    assert list(errors) == broken
    assert all(str(path) in str(error) for path, error in errors.items())


def test_a_batch_of_broken_files_is_empty(tmp_path, make_model):
    (batch,) = batches_of_files([str(tmp_path / "missing.png")], make_model((8, 8)))
    assert batch.images.shape == (0, 8, 8, 3) and batch.paths == [] and len(batch.errors) == 1
    assert list(batches_of_files([], make_model())) == []


def test_a_wrong_batch_size_is_found_at_once(make_model):
    with pytest.raises(ValueError, match=r"`batch_size` must be .*Received: 0"):
        batches_of_files([], make_model(), 0)
