import warnings

import numpy as np
import pytest
from PIL import Image

from keras_vitx.data import decode_image, preprocess_input, preprocessing
from keras_vitx.data.preprocessing import resize_and_crop

pytestmark = pytest.mark.backend_free


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int)).max()


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("crop_ratio", [1.0, 0.9, 1.15])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("image_size", [(61, 87), (90, 45), (20, 27), (24, 40)])
def test_it_equals_timm(timm_transform, picture, image_size, size, crop_ratio, interpolation):
    image = picture(*image_size)
    transform = timm_transform(
        (3, *size), crop_pct=crop_ratio, interpolation=interpolation, normalize=False
    )
    expected = np.asarray(transform(Image.fromarray(image))).transpose(1, 2, 0)
    ours = resize_and_crop(image, size, crop_ratio, interpolation)
    assert ours.shape == expected.shape and ours.dtype == np.uint8
    assert difference(ours, expected) <= 1


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_each_channel_is_resized_as_a_grey_image(picture, channels):
    image = picture(50, 40, channels)
    resized = resize_and_crop(image, (16, 16))
    for i in range(channels):
        alone = resize_and_crop(np.repeat(image[..., i : i + 1], 3, axis=-1), (16, 16))
        np.testing.assert_array_equal(resized[..., i], alone[..., 0])


@pytest.mark.parametrize(
    "arguments, message",
    [(((8, 8), 0.0), "crop_ratio"), (((8, 8), 1.0, "bicubik"), "Did you mean 'bicubic'")],
)
def test_wrong_arguments_are_named(picture, arguments, message):
    with pytest.raises(ValueError, match=message):
        resize_and_crop(picture(9, 9), *arguments)


def test_values_are_normalised_by_channel(make_model):
    model = make_model((4, 4), mean=[0.0, 0.5, 1.0], std=[1.0, 0.5, 0.25])
    image = np.full((4, 4, 3), 255, "uint8")
    batch = preprocess_input(image, model)
    assert batch.shape == (1, 4, 4, 3) and batch.dtype == np.float32
    np.testing.assert_allclose(batch[0, 0, 0], [1.0, 1.0, 0.0], atol=1e-6)


def test_every_kind_of_input_gives_the_same(make_model, picture, save, tmp_path):
    image, model = picture(45, 37), make_model()
    path = save(tmp_path / "a.png", image)
    expected = preprocess_input(image, model)
    for other in (
        path,
        str(path),
        Image.fromarray(image),
        image[None],
        [image],
        image / 255,
        (image / 255).astype("float32"),
    ):
        np.testing.assert_array_equal(preprocess_input(other, model), expected)
    mixed = preprocess_input([path, Image.fromarray(image), image], model)
    np.testing.assert_array_equal(mixed, np.repeat(expected, 3, axis=0))


def test_images_of_different_sizes_make_one_batch(make_model, picture):
    batch = preprocess_input([picture(45, 37), picture(20, 90)], make_model((16, 24)))
    assert batch.shape == (2, 16, 24, 3)


def test_grey_becomes_colour_and_colour_grey(make_model, picture):
    grey = picture(32, 32, 1)
    batch = preprocess_input(grey[..., 0], make_model())
    assert batch.shape == (1, 32, 32, 3)
    np.testing.assert_array_equal(batch[..., 0], batch[..., 2])
    np.testing.assert_array_equal(preprocess_input(grey, make_model(channels=1)), batch[..., :1])
    colour = np.repeat(grey, 3, axis=-1)
    np.testing.assert_array_equal(preprocess_input(colour, make_model(channels=1)), batch[..., :1])


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros(5), r"Received: shape"),
        (np.full((8, 8, 3), 200.0), r"float64 in 200\.\.200"),
        (np.full((8, 8, 3), -0.5), "floats in 0..1"),
        (np.full((8, 8, 3), np.nan), "floats in 0..1"),
        (np.zeros((8, 8, 3), "int32"), "Received: int32"),
        (np.zeros((3, 8, 8), "uint8"), "can't be converted to 3 channels"),
        ([], "Received: none"),
        (np.zeros((0, 8, 8, 3), "uint8"), "Received: none"),
        (np.zeros((8, 0, 3), "uint8"), "Received: shape"),
    ],
)
def test_wrong_images_are_an_error(make_model, images, message):
    with pytest.raises(ValueError, match=message):
        preprocess_input(images, make_model())


def test_a_model_without_the_facts_is_an_error(make_model, picture):
    model = make_model()
    del model.preprocessing
    with pytest.raises(ValueError, match="has no `preprocessing`"):
        preprocess_input(picture(8, 8), model)
    with pytest.raises(ValueError, match=r"Received: \(None, None, 32, 3\)"):
        preprocess_input(picture(8, 8), make_model((None, 32)))
    with pytest.raises(ValueError, match="each of 3 channels"):
        preprocess_input(picture(8, 8), make_model(mean=[0.5], std=[0.5]))


def test_a_file_is_turned_upright(tmp_path, picture, save):
    image = picture(20, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # EXIF: rotate a quarter turn clockwise
    upright = decode_image(save(tmp_path / "a.png", image, exif=exif))
    np.testing.assert_array_equal(upright, np.rot90(image, -1))


def test_files_become_colour_or_grey(tmp_path, picture, save):
    grey, alpha = picture(9, 8, 1), picture(9, 8, 4)
    path = save(tmp_path / "grey.png", grey)
    np.testing.assert_array_equal(decode_image(path), np.repeat(grey, 3, axis=-1))
    np.testing.assert_array_equal(decode_image(path, channels=1), grey)
    np.testing.assert_array_equal(decode_image(save(tmp_path / "a.png", alpha)), alpha[..., :3])
    with pytest.raises(ValueError, match=r"`channels` must be 1 or 3\. Received: 4"):
        decode_image(path, channels=4)


def test_16_bit_grey_is_scaled_not_cut(tmp_path, picture):
    grey = picture(9, 8, 1)[..., 0]
    path = tmp_path / "deep.png"
    Image.fromarray(grey.astype("uint16") * 257).save(path)
    np.testing.assert_array_equal(decode_image(path, channels=1)[..., 0], grey)


def test_a_file_that_is_no_image_is_named(tmp_path, picture, save):
    short = save(tmp_path / "short.jpg", picture(64, 64))
    short.write_bytes(short.read_bytes()[:-300])
    (tmp_path / "text.png").write_text("text")
    for name in ("short.jpg", "text.png", "missing.png"):
        with pytest.raises(OSError, match=f"{name} can't be decoded"):
            decode_image(tmp_path / name)


@pytest.mark.parametrize("sides", [(1, 20_000), (20_000, 1), (3, 9_000)])
def test_only_what_the_crop_shows_of_a_long_image_is_resized(
    make_model, picture, save, tmp_path, monkeypatch, sides
):
    resized, resize = [], Image.Image.resize

    def spy(self, size, *arguments):
        resized.append(size[0] * size[1])
        return resize(self, size, *arguments)

    monkeypatch.setattr(Image.Image, "resize", spy)
    batch = preprocess_input(save(tmp_path / "long.png", picture(*sides)), make_model())
    assert batch.shape == (1, 32, 32, 3) and np.isfinite(batch).all()
    assert max(resized) <= 130 * 32 * 32


@pytest.mark.parametrize("crop_ratio", [0.875, 1.0, 1.15])
@pytest.mark.parametrize("sides", [(40, 400), (400, 40), (41, 777)])
def test_a_long_image_shows_its_center(monkeypatch, sides, crop_ratio):
    axis = int(np.argmax(sides))
    # Four levels per pixel, and so at least five per pixel of the result.
    ramp = np.clip(4 * (np.arange(max(sides)) - max(sides) / 2) + 128, 0, 255).astype("uint8")
    image = np.broadcast_to(ramp[:, None] if axis == 0 else ramp, sides)[..., None]
    results = []
    for long in (8, 10**9):
        monkeypatch.setattr(preprocessing, "LONG", long)
        results.append(resize_and_crop(image, (32, 32), crop_ratio).astype(int))
    # By a pixel at most: the long sides are rounded to other numbers of pixels.
    assert np.abs(results[0] - results[1]).max() <= 8
    assert np.ptp(results[0]) > 120


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(
    make_model, picture, save, tmp_path, monkeypatch
):
    path = save(tmp_path / "large.png", picture(40, 30))
    for limit in (1_000, 500):  # Pillow itself warns at the one, and raises at the other.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(OSError, match=rf"large.png can't .* more than {limit:,} pixels"),
        ):
            preprocess_input(path, make_model())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert preprocess_input(path, make_model()).shape == (1, 32, 32, 3)


def test_an_image_without_pixels_is_an_error(make_model):
    with pytest.raises(ValueError, match=r"size of a PIL image is \(8, 0\)"):
        preprocess_input(Image.new("RGB", (8, 0)), make_model())
    with pytest.raises(ValueError, match="at least one pixel"):
        resize_and_crop(np.zeros((0, 8, 3), "uint8"), (4, 4))
