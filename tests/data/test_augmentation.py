import numpy as np
import pytest

from keras_vitx.data.augmentation import augmentation_named, crop_flip, random_resized_crop

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def images(picture):
    return tf.constant(np.stack([picture(16, 24, seed=i) for i in range(12)]))


@pytest.mark.parametrize("augment", [crop_flip, random_resized_crop])
def test_the_seed_decides(images, augment):
    result = augment(images, (1, 2)).numpy()
    assert result.shape == images.shape and result.dtype == np.uint8
    assert all((a != b).any() for a, b in zip(result, images.numpy(), strict=True))
    np.testing.assert_array_equal(result, augment(images, (1, 2)).numpy())
    assert (result != augment(images, (1, 3)).numpy()).any()


def test_crop_flip_gives_a_window_of_the_padded_image(images):
    padded = np.pad(images, [(0, 0), (2, 2), (3, 3), (0, 0)])
    found = set()
    for seed in range(8):
        for image, source in zip(crop_flip(images, (0, seed)).numpy(), padded, strict=True):
            windows = {
                (top, left, flip): source[top : top + 16, left : left + 24][:, ::flip]
                for top in range(5)
                for left in range(7)
                for flip in (1, -1)
            }
            matches = [key for key, window in windows.items() if (window == image).all()]
            assert len(matches) == 1
            found.add(matches[0])
    tops, lefts, flips = (set(values) for values in zip(*found, strict=True))
    assert tops == set(range(5)) and lefts == set(range(7)) and flips == {1, -1}


def test_images_of_a_batch_are_changed_each_its_own_way(picture):
    images = tf.constant(np.stack([picture(16, 16)] * 8))
    for augment in (crop_flip, random_resized_crop):
        assert len({image.tobytes() for image in augment(images, (0, 0)).numpy()}) > 4


@pytest.mark.parametrize("single", [True, False])
def test_a_random_window_covers_the_share_asked_for(single):
    # An image whose pixels hold their place tells which window was cut.
    y, x = np.mgrid[0:200, 0:200].astype("uint8")
    image = np.stack([y, x, np.zeros_like(y)], axis=-1)
    flips, lefts = 0, []
    for seed in range(60):
        given = tf.constant(image if single else image[None])
        window = random_resized_crop(given, (7, seed), (64, 64), scale=(0.25, 0.5)).numpy()
        window = window.reshape(64, 64, 3).astype(float)
        step = 64 / 63
        height = (window[-1, 0, 0] - window[0, 0, 0]) * step
        width = (window[0, -1, 1] - window[0, 0, 1]) * step
        flips += width < 0
        lefts.append(min(window[0, 0, 1], window[0, -1, 1]))
        assert 0.22 < abs(height * width) / 200**2 < 0.54
        assert 0.7 < abs(width) / height < 1.43
    assert 15 < flips < 45
    assert min(lefts) < 15 and max(lefts) > 70


def test_a_whole_window_gives_the_image_back(picture):
    image = picture(24, 24)
    for seed in range(20):
        batch = random_resized_crop(tf.constant(image[None]), (0, seed), scale=(1e6, 1e6)).numpy()
        single = random_resized_crop(tf.constant(image), (0, seed), scale=(1e6, 1e6)).numpy()
        np.testing.assert_array_equal(batch[0], single)
        assert (single == image).all() or (single == image[:, ::-1]).all()


def test_a_shrunk_window_is_antialiased():
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype("uint8")
    image = tf.constant(np.repeat(checks[..., None], 3, axis=-1))
    shrunk = random_resized_crop(image, (0, 0), (8, 8), scale=(1.0, 1.0)).numpy()
    assert np.abs(shrunk.astype(float) - 127.5).max() < 25


def test_an_unknown_name_gives_the_nearest():
    assert augmentation_named(None) is None
    assert augmentation_named("crop_flip") is crop_flip
    with pytest.raises(ValueError, match=r"'crop_flop' is unknown\. Did you mean 'crop_flip'"):
        augmentation_named("crop_flop")
