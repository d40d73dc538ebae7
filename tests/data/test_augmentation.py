"""Augmentation of single images, and mixing; `test_against_timm.py` has their distributions."""

import numpy as np
import pytest
from harness import picture, pictures, stand_in
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from keras_vitx.data import Augmentation, Mixing, pipelines
from keras_vitx.data.augmentation.windows import random_box, random_shift, resized_crop
from keras_vitx.data.images import resize

pytestmark = pytest.mark.backend_free
MEAN = (0.485, 0.456, 0.406)
SIDES = st.integers(1, 9) | st.integers(1, 5000)


def generators(count=64):
    return [np.random.default_rng(seed) for seed in range(count)]


def ranges(smallest, largest):
    return st.tuples(*[st.floats(smallest, largest)] * 2).map(sorted)


@given(SIDES, SIDES, ranges(1e-3, 1), ranges(0.01, 100), st.integers(0, 9))
def test_a_random_box_lies_inside_the_image(height, width, scale, ratio, seed):
    random = np.random.default_rng(seed)
    top, left, rows, columns = random_box(height, width, random, scale, ratio)
    assert 0 <= top < top + rows <= height and 0 <= left < left + columns <= width


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from(["bicubic", "bilinear", "random"]))
def test_a_crop_is_a_random_box_of_pixels_or_of_a_picture(height, width, filters):
    image = picture(height, width)
    for seed in range(4):
        of_picture, found = (
            resized_crop(each, (24, 32), np.random.default_rng(seed), interpolation=filters)
            for each in (Image.fromarray(image), image)
        )
        np.testing.assert_array_equal(of_picture, found)
        random = np.random.default_rng(seed)
        top, left, rows, columns = random_box(height, width, random, (0.08, 1), (3 / 4, 4 / 3))
        if filters != "random":
            box = image[top : top + rows, left : left + columns]
            resample = getattr(Image.Resampling, filters.upper())
            np.testing.assert_array_equal(found, resize(box, (24, 32), resample))


def test_a_shift_is_within_an_eighth_and_leaves_a_black_border():
    image = np.maximum(picture(16, 24), 1)
    padded = np.pad(image, [(2, 2), (3, 3), (0, 0)])
    seen = set()
    for random in generators(200):
        found = random_shift(image, random)
        places = [
            (top, left)
            for top, left in np.ndindex(5, 7)
            if np.array_equal(found, padded[top : top + 16, left : left + 24])
        ]
        assert len(places) == 1
        seen |= {*places}
    assert len(seen) == 35


def test_half_of_the_images_are_flipped():
    image = picture(20, 15)
    drawn = [Augmentation().pixels(image, (32, 24), random, MEAN) for random in generators()]
    plain = [Augmentation(flip=0.0).pixels(image, (32, 24), r, MEAN) for r in generators()]
    pairs = list(zip(drawn, plain, strict=True))
    flipped = [not np.array_equal(found, straight) for found, straight in pairs]
    for (found, straight), flip in zip(pairs, flipped, strict=True):
        np.testing.assert_array_equal(found, straight[:, ::-1] if flip else straight)
    assert 20 < sum(flipped) < 44


@pytest.mark.parametrize("fields", [{"rand_augment": "m9-mstd0.5-inc1"}, {"color_jitter": 0.4}])
def test_gray_images_are_augmented_by_the_generator_alone(fields):
    image, augmentation = picture(40, 30, 1), Augmentation(**fields)
    for pair in zip(generators(20), generators(20), strict=True):
        first, second = (augmentation.pixels(image, (16, 24), random, MEAN[:1]) for random in pair)
        assert first.shape == (16, 24, 1) and first.dtype == np.uint8
        np.testing.assert_array_equal(first, second)


def batch(count=6, size=8):
    """Images that hold their index, and one-hot labels."""
    images = np.ones((count, size, size, 3)) * np.arange(count)[:, None, None, None]
    return images.astype("float32"), np.eye(count, dtype="float32")


@pytest.mark.parametrize("mixing", [Mixing(), Mixing(mixup=0), Mixing(cutmix=0)])
def test_labels_are_mixed_by_the_share_of_pixels(mixing):
    shares = []
    for random in generators(50):
        images, labels = mixing(*batch(), random)
        assert images.dtype == labels.dtype == np.float32
        for i, share in enumerate(labels.diagonal()):
            np.testing.assert_allclose(labels[i, 5 - i], 1 - share, atol=1e-6)
            np.testing.assert_allclose(images[i].mean(), share * i + (1 - share) * (5 - i), 1e-5)
            assert mixing.mixup or set(np.unique(images[i])) <= {i, 5 - i}
        shares.append(labels[0, 0])
    assert min(shares) < 0.4 and max(shares) > 0.7


@pytest.mark.parametrize("group_size, groups", [(None, 1), (2, 4), (4, 2), (8, 1)])
def test_a_coefficient_per_group_is_drawn(group_size, groups):
    mixing = Mixing(cutmix=0, group_size=group_size)
    images, labels = mixing(*batch(8), np.random.default_rng(1))
    assert len(set(np.round(labels.diagonal(), 6))) == groups
    np.testing.assert_allclose(images[:, 0, 0, 0], labels @ np.arange(8), rtol=1e-5)


def test_mixed_bytes_are_rounded():
    images = np.arange(4 * 16 * 16 * 3, dtype="uint8").reshape(4, 16, 16, 3)
    found, wanted = (
        Mixing(cutmix=0)(each, np.eye(4), np.random.default_rng(0))[0]
        for each in (images.copy(), images.astype("float32"))
    )
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.rint(wanted))


def test_an_unmixed_batch_is_unchanged():
    for mixing in (Mixing(mixing_probability=0), Mixing(mixup=0, cutmix=0)):
        assert not mixing.on and Mixing.of(mixing) is None
        np.testing.assert_equal(mixing(*batch(), generators()[0]), batch())
    assert Mixing.of({"mixup": 0.2, "cutmix": 0.0}) == Mixing(0.2, 0.0)


def keras_cv_batches(augmentation="keras_cv"):
    options = {"augmentation": augmentation, "validation_split": 0}
    return pipelines(pictures(8), stand_in(), 4, **options).train


def test_keras_cv_makes_the_same_batches_from_a_seed():
    pytest.importorskip("keras_cv")
    found = keras_cv_batches()
    # Again, after another.
    (images, labels), (others, _), (again, _) = (found.dataset()[i] for i in (0, 1, 0))
    np.testing.assert_array_equal(images, again)
    assert images.shape == (4, 16, 16, 3) and images.dtype == np.float32
    assert labels.tolist() == [i % 4 for i in found.ids(0, 0)]
    assert images.std() > 0.3 and len({image.tobytes() for image in [*images, *others]}) == 8

    images, _ = keras_cv_batches(Augmentation(crop="shift", color_jitter=0.4, by="keras_cv"))[0]
    assert np.isfinite(images).all() and images.min() >= -2 and images.max() <= 2
    flipped = Augmentation(crop=None, flip=1.0, erasing=1.0, by="keras_cv")
    found, plain = (keras_cv_batches(each)[0][0] for each in (flipped, None))
    near = np.abs(found - plain[:, :, ::-1]) < 0.02
    assert 0.5 < near.mean() < 0.99 and (np.abs(found[~near]) > 2).any(), "normal noise"
