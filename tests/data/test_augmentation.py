import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import Augmentation
from keras_vitx.data.augmentation import PRESETS, jittered
from keras_vitx.data.augmentation.windows import random_resized, shifted
from keras_vitx.data.preprocessing import resize

pytestmark = pytest.mark.backend_free
MEAN = (0.485, 0.456, 0.406)


def generators(count=64):
    return [np.random.default_rng(seed) for seed in range(count)]


def test_a_shift_is_within_an_eighth_and_leaves_a_black_border(picture):
    image = np.maximum(picture(16, 24), 1)
    tops, lefts = set(), set()
    for random in generators(200):
        found, window = shifted(image, random)
        assert found.shape == image.shape and found.dtype == np.uint8
        top, left = round(window.top * 16), round(window.left * 24)
        padded = np.pad(image, [(2, 2), (3, 3), (0, 0)])
        np.testing.assert_array_equal(found, padded[top + 2 : top + 18, left + 3 : left + 27])
        tops.add(top)
        lefts.add(left)
    assert tops == set(range(-2, 3)) and lefts == set(range(-3, 4))


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


@pytest.mark.parametrize("filters", ["bicubic", "bilinear", "random"])
def test_a_window_of_a_picture_is_that_of_its_pixels(picture, filters):
    image, options = picture(50, 61), {"interpolation": filters}
    for random in range(20):
        found, wanted = (
            random_resized(source, (24, 32), np.random.default_rng(random), **options)
            for source in (Image.fromarray(image), image)
        )
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1] == wanted[1]


def test_a_shrunk_window_is_antialiased():
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype("uint8")
    image = np.repeat(checks[..., None], 3, axis=-1)
    shrunk, _ = random_resized(image, (8, 8), generators()[0], (1.0, 1.0), (1.0, 1.0))
    assert np.abs(shrunk.astype(float) - 127.5).max() < 25


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fields", [{"rand_augment": "m9-mstd0.5-inc1"}, {"color_jitter": 0.4}])
def test_the_same_generator_gives_the_same_image(picture, channels, fields):
    image = picture(40, 30, channels)
    augmentation = Augmentation(**fields)
    for seed in range(20):
        first, second = (
            augmentation.pixels(image, (16, 24), np.random.default_rng(seed), MEAN[:channels])
            for _ in range(2)
        )
        assert first[0].shape == (16, 24, channels) and first[0].dtype == np.uint8
        np.testing.assert_array_equal(first[0], second[0])
        assert first[1] == second[1]


def test_jitter_keeps_the_mean_within_its_factors(picture):
    image = picture(32, 32) // 2
    means = [jittered(image, 0.3, random).mean() / image.mean() for random in generators()]
    assert 0.65 < min(means) < 0.85 and 1.15 < max(means) < 1.35
    np.testing.assert_array_equal(jittered(image, 0.0, generators()[0]), image)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_read_back_from_json(name):
    augmentation = Augmentation.of(name)
    record = json.loads(json.dumps(dataclasses.asdict(augmentation)))
    assert Augmentation.of(record) == augmentation
    assert Augmentation.of(augmentation) is augmentation and Augmentation.of(None) is None


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"crop": "centre"}, r"`crop` must be one of .* Received: 'centre'"),
        ({"scale": (0.5, 0.2)}, r"`scale` .* Received: \(0\.5, 0\.2\)"),
        ({"scale": (0.5, 1.2)}, "`scale` .* at most 1"),
        ({"ratio": 1.5}, r"`ratio` .* Received: 1\.5"),
        ({"flip": 1.5}, r"`flip` must be a number in \[0, 1\]. Received: 1\.5"),
        ({"erasing": -0.1}, "`erasing` must be"),
        ({"repeats": 0}, "`repeats` .* Received: 0"),
        ({"by": "albumentations"}, "`by` must be one of"),
        ({"rand_augment": "m9-mstd0.5"}, "`rand_augment` must be .* inc1"),
        ({"rand_augment": "m11-inc1"}, r"`rand_augment` must have m in 0\.\.10"),
        ({"rand_augment": "m9-w3-inc1"}, "`rand_augment` must be a name such as"),
        ({"rand_augment": "m9-inc1", "color_jitter": 0.4}, "`color_jitter` must be 0 where"),
    ],
)
def test_a_field_out_of_range_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**fields)


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(ValueError, match=r"'crop_flop' is unknown\. Did you mean 'crop_flip'"):
        Augmentation.of("crop_flop")
    with pytest.raises(ValueError, match="no 'erase'"):
        Augmentation.of({"erase": 0.25})


def test_images_of_other_channels_are_named():
    PRESETS["rand_augment"].check_channels(1)
    PRESETS["crop_flip"].check_channels(4)
    with pytest.raises(ValueError, match=r"`rand_augment` must be off .* 1 or 3 .*Received: 4"):
        PRESETS["rand_augment"].check_channels(4)
    with pytest.raises(ValueError, match=r"`rand_augment` must be off .*keras_cv.* Received: 1"):
        PRESETS["keras_cv"].check_channels(1)
