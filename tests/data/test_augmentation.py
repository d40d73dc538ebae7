import numpy as np
import pytest

from keras_vitx.data.augmentation import (
    Augmentation,
    augmentation_named,
    crop_flip,
    random_resized_crop,
)

pytestmark = pytest.mark.backend_free


@pytest.fixture
def draws():
    return np.random.default_rng(0).random((64, 5))


def test_crop_flip_gives_a_window_of_the_padded_image(picture, draws):
    image = picture(16, 24)
    padded = np.pad(image, [(2, 2), (3, 3), (0, 0)])
    windows = {
        padded[top : top + 16, left : left + 24][:, ::flip].tobytes(): (top, left, flip)
        for top in range(5)
        for left in range(7)
        for flip in (1, -1)
    }
    edges = np.array([[0, 0, 0, 0, 0], [0.999] * 5])
    found = [windows[crop_flip(image, (16, 24), row).tobytes()] for row in (*edges, *draws)]
    assert found[:2] == [(0, 0, -1), (4, 6, 1)]
    tops, lefts, flips = (set(values) for values in zip(*found, strict=True))
    assert tops == set(range(5)) and lefts == set(range(7)) and flips == {1, -1}


def test_a_random_window_covers_the_share_asked_for(draws):
    # Pixels that encode their position show which window was cropped.
    y, x = np.mgrid[0:200, 0:200].astype("uint8")
    image = np.stack([y, x, np.zeros_like(y)], axis=-1)
    flips, lefts, ratios = 0, [], []
    for row in draws:
        window = random_resized_crop(image, (64, 64), row, scale=(0.25, 0.5))
        assert window.shape == (64, 64, 3) and window.dtype == np.uint8
        window = window.astype(float)
        step = 64 / 63
        height = (window[-1, 0, 0] - window[0, 0, 0]) * step
        width = (window[0, -1, 1] - window[0, 0, 1]) * step
        flips += width < 0
        lefts.append(min(window[0, 0, 1], window[0, -1, 1]))
        ratios.append(abs(width) / height)
        assert 0.22 < abs(height * width) / 200**2 < 0.54
        assert 0.7 < ratios[-1] < 1.43
    assert 15 < flips < 49
    assert min(lefts) < 15 and max(lefts) > 70
    assert min(ratios) < 0.85 and max(ratios) > 1.18


@pytest.mark.parametrize("size", [(24, 24), (1, 30)])
def test_a_whole_window_gives_the_image_back(picture, draws, size):
    image = picture(*size)
    for row in draws[:8]:
        window = random_resized_crop(image, size, row, scale=(1e6, 1e6))
        assert (window == (image[:, ::-1] if row[4] < 0.5 else image)).all()
        assert random_resized_crop(image, (8, 8), row, scale=(0, 0)).shape == (8, 8, 3)


def test_a_shrunk_window_is_antialiased(draws):
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype("uint8")
    image = np.repeat(checks[..., None], 3, axis=-1)
    shrunk = random_resized_crop(image, (8, 8), draws[0], scale=(1.0, 1.0))
    assert np.abs(shrunk.astype(float) - 127.5).max() < 25


def test_an_unknown_name_gives_the_nearest():
    assert augmentation_named(None) is None
    assert augmentation_named("crop_flip") == Augmentation(crop="shift")
    with pytest.raises(ValueError, match=r"'crop_flop' is unknown\. Did you mean 'crop_flip'"):
        augmentation_named("crop_flop")
