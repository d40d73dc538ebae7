"""Augmentation of single images, and mixing; `test_against_timm.py` has their distributions."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import Augmentation, Mixing, pipelines
from keras_vitx.data.augmentation import PRESETS
from keras_vitx.data.augmentation.mixing import check_mixable, shard_of_batch, soft_labels
from keras_vitx.data.augmentation.windows import random_shift, resized_crop
from keras_vitx.data.images import resize

pytestmark = pytest.mark.backend_free
MEAN = (0.485, 0.456, 0.406)


def generators(count=64):
    return [np.random.default_rng(seed) for seed in range(count)]


def test_a_shift_is_within_an_eighth_and_leaves_a_black_border(picture):
    image = np.maximum(picture(16, 24), 1)
    padded = np.pad(image, [(2, 2), (3, 3), (0, 0)])
    seen = set()
    for random in generators(200):
        found, window = random_shift(image, random)
        top, left = round(window.top * 16), round(window.left * 24)
        np.testing.assert_array_equal(found, padded[top + 2 : top + 18, left + 3 : left + 27])
        seen |= {("top", top), ("left", left)}
    assert seen == {("top", i) for i in range(-2, 3)} | {("left", i) for i in range(-3, 4)}


def test_the_window_says_what_is_seen(picture):
    image = picture(200, 150)
    flips = 0
    for random in generators():
        found, window = Augmentation().pixels(image, (32, 24), random, MEAN)
        top, rows = round(window.top * 200), round(window.height * 200)
        left, columns = round(window.left * 150), round(window.width * 150)
        box = image[top : top + rows, left : left + columns]
        seen = resize(box, (32, 24), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(found, seen[:, ::-1] if window.flip else seen)
        flips += window.flip
    assert 20 < flips < 44


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
def test_a_window_of_a_picture_is_that_of_its_pixels(picture, interpolation):
    image = picture(50, 61)
    for seed in range(20):
        found, wanted = (
            resized_crop(each, (24, 32), np.random.default_rng(seed), interpolation=interpolation)
            for each in (Image.fromarray(image), image)
        )
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1] == wanted[1]


def test_a_shrunk_window_is_antialiased():
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype("uint8")
    image = np.repeat(checks[..., None], 3, axis=-1)
    shrunk, _ = resized_crop(image, (8, 8), generators()[0], (1.0, 1.0), (1.0, 1.0))
    assert np.abs(shrunk.astype(float) - 127.5).max() < 25


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fields", [{"rand_augment": "m9-mstd0.5-inc1"}, {"color_jitter": 0.4}])
def test_the_same_generator_gives_the_same_image(picture, channels, fields):
    image, augmentation = picture(40, 30, channels), Augmentation(**fields)
    for pair in zip(generators(20), generators(20), strict=True):
        first, second = (
            augmentation.pixels(image, (16, 24), random, MEAN[:channels]) for random in pair
        )
        assert first[0].shape == (16, 24, channels) and first[0].dtype == np.uint8
        np.testing.assert_array_equal(first[0], second[0])
        assert first[1] == second[1]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_read_back_from_json(name):
    augmentation = Augmentation.of(name)
    record = json.loads(json.dumps(dataclasses.asdict(augmentation)))
    assert Augmentation.of(record) == augmentation
    assert Augmentation.of(augmentation) is augmentation and Augmentation.of(None) is None


@pytest.mark.parametrize(
    "cls, value, message",
    [
        (Augmentation, {"crop": "center"}, r"`crop` must be one of .* Received: 'center'"),
        (Augmentation, {"scale": (0.5, 0.2)}, r"`scale` .* Received: \(0\.5, 0\.2\)"),
        (Augmentation, {"scale": (0.5, 1.2)}, "`scale` .* at most 1"),
        (Augmentation, {"ratio": 1.5}, r"`ratio` .* Received: 1\.5"),
        (Augmentation, {"flip": 1.5}, r"`flip` must be a number in \[0, 1\]. Received: 1\.5"),
        (Augmentation, {"erasing": -0.1}, "`erasing` must be"),
        (Augmentation, {"repeats": 0}, "`repeats` .* Received: 0"),
        (Augmentation, {"by": "albumentations"}, "`by` must be one of"),
        (Augmentation, {"rand_augment": "m9-mstd0.5"}, "`rand_augment` must be .* inc1"),
        (Augmentation, {"rand_augment": "m11-inc1"}, r"`rand_augment` must have m in 0\.\.10"),
        (Augmentation, {"rand_augment": "m9-w3-inc1"}, "`rand_augment` must be a name such as"),
        (Augmentation, {"rand_augment": "m9-inc1", "color_jitter": 0.4}, "`color_jitter` must be"),
        (Augmentation, "crop_flop", r"Received: 'crop_flop'\. Did you mean 'crop_flip'"),
        (Augmentation, {"erase": 0.25}, "of `Augmentation`. Received: 'erase'"),
        (Mixing, {"mixup": -1}, "`mixup` must be a number, at least 0. Received: -1"),
        (Mixing, {"cutmix": float("nan")}, "`cutmix` .* Received: nan"),
        (Mixing, {"mixing_probability": 2}, "`mixing_probability` .* Received: 2"),
        (Mixing, {"group_size": 3}, "`group_size` must be an even number or None. Received: 3"),
        (Mixing, {"switch": "half"}, "`switch` .* Received: 'half'"),
        (Mixing, {"alpha": 1}, "of `Mixing`. Received: 'alpha'"),
        (Mixing, 0.8, r"`mixing` must be a Mixing or None\. Received: 0\.8"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(cls, value, message):
    with pytest.raises(ValueError, match=message):
        cls.of(value)


def test_images_of_other_channels_are_named():
    PRESETS["rand_augment"].check(1)
    PRESETS["crop_flip"].check(4)
    with pytest.raises(ValueError, match=r"`rand_augment` must be off .* 1 or 3 .*Received: 4"):
        PRESETS["rand_augment"].check(4)
    with pytest.raises(ValueError, match=r"`rand_augment` must be off .*keras_cv.* Received: 1"):
        PRESETS["keras_cv"].check(1)


# Mixing


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
        for i in range(6):
            share = labels[i, i]
            np.testing.assert_allclose(labels[i, 5 - i], 1 - share, atol=1e-6)
            np.testing.assert_allclose(images[i].mean(), share * i + (1 - share) * (5 - i), 1e-5)
            if not mixing.mixup:
                assert set(np.unique(images[i])) <= {i, 5 - i}
        shares.append(labels[0, 0])
    assert min(shares) < 0.4 and max(shares) > 0.7


@pytest.mark.parametrize("group_size, groups", [(None, 1), (2, 4), (4, 2), (8, 1)])
def test_a_coefficient_per_group(group_size, groups):
    mixing = Mixing(cutmix=0, group_size=group_size)
    images, labels = mixing(*batch(8), np.random.default_rng(1))
    assert len(set(np.round(labels.diagonal(), 6))) == groups
    np.testing.assert_allclose(images[:, 0, 0, 0], labels @ np.arange(8), rtol=1e-5)
    for shares in (2, 4):  # Devices that mix their own images mix the same.
        for share in range(shares):
            own = shard_of_batch(8, share, shares)
            given = [array[own] for array in batch(8)]
            mixed, of_mixed = mixing(*given, np.random.default_rng(1), share, shares)
            np.testing.assert_array_equal(mixed, images[own])
            np.testing.assert_array_equal(of_mixed, labels[own])
    with pytest.raises(ValueError, match="`group_size` must divide the batch of 6"):
        Mixing(group_size=4).check(np.arange(6) % 2, 2, 6)


def test_bytes_are_rounded():
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
        for found, given in zip(mixing(*batch(), generators()[0]), batch(), strict=True):
            np.testing.assert_array_equal(found, given)
    assert Mixing.of({"mixup": 0.2, "cutmix": 0.0}) == Mixing(0.2, 0.0)


@pytest.mark.parametrize(
    "labels, classes, wanted",
    [
        ([2, 0], 3, [[0, 0, 1], [1, 0, 0]]),
        ([1, 0], 1, [1, 0]),
        ([[1, 1, 0], [0, 0, 0]], None, [[1, 1, 0], [0, 0, 0]]),
        ([0, 1], None, "`classes` must be the number of classes"),
        ([0, 3], 3, r"Labels must be in 0\.\.2\. Received: 3"),
        ([0.5, 1.5], 1, "For regression, use no mixing"),
        ([[0.5, 1.5]], 2, "For regression, use no mixing"),
    ],
)
def test_labels_become_soft_or_are_named(labels, classes, wanted):
    labels = np.array(labels)
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            check_mixable(labels, classes)
    else:
        check_mixable(labels, classes)
        found = soft_labels(labels, classes)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, wanted)


# keras-cv


def test_keras_cv_makes_the_same_batches_from_a_seed(pictures, make_model, monkeypatch):
    def train(augmentation="keras_cv"):
        model = make_model(classes=4)
        return pipelines(pictures(8), model, 4, augmentation=augmentation, validation_split=0).train

    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "keras_cv", None)
        with pytest.raises(ImportError, match=r'needs keras-cv: .* extra "keras-cv"'):
            train()
    pytest.importorskip("keras_cv")
    found = train()
    # Again, after another.
    (images, labels), (others, _), (again, _) = (
        found.to_inputs(found.dataset()[i]) for i in (0, 1, 0)
    )
    np.testing.assert_array_equal(images, again)
    assert images.shape == (4, 16, 16, 3) and images.dtype == np.float32
    assert labels.tolist() == [i % 4 for i in found.ids(0, 0)]
    assert images.std() > 0.3 and len({image.tobytes() for image in [*images, *others]}) == 8

    images, _ = train(Augmentation(crop="shift", color_jitter=0.4, by="keras_cv"))[0]
    assert np.isfinite(images).all() and images.min() >= -2 and images.max() <= 2
    erased, _ = train(Augmentation(crop=None, flip=0.0, erasing=1.0, by="keras_cv"))[0]
    assert (np.abs(erased) > 2).any(), "normal noise"
    flipped = Augmentation(crop=None, flip=1.0, by="keras_cv")
    found, plain = (train(each)[0][0] for each in (flipped, None))
    np.testing.assert_allclose(found, plain[:, :, ::-1], atol=0.02)
