"""From files and arrays to the input of a model, and the record that says how."""

import json
import os
import struct
import warnings

import keras
import numpy as np
import pytest
from harness import FAMILIES, picture, save_picture, stand_in
from PIL import Image

import keras_vitx as kv
from keras_vitx.data import batches_of_files, decode_image, decoding, images, preprocess_input
from keras_vitx.data.images import resize_and_crop
from keras_vitx.preprocessing import Preprocessing

pytestmark = pytest.mark.backend_free


# The record


def test_the_record_comes_back_from_json():
    record = Preprocessing(np.float32([0.5, 0.25]), [1, 2], 1.13, "bilinear")
    assert record.mean == (0.5, 0.25) and record.std == (1.0, 2.0)
    assert Preprocessing.of(json.loads(json.dumps(record.to_dict()))) == record
    assert Preprocessing.of(record) is record
    assert Preprocessing.of({"mean": [0.5], "std": [1]}) == Preprocessing((0.5,), (1.0,))


def test_other_channels_get_the_mean():
    record = Preprocessing((0.25, 0.5, 0.75), (1, 2, 3), 0.9)
    assert record.for_channels(3) is record
    assert record.for_channels(4) == Preprocessing((0.5,) * 4, (2.0,) * 4, 0.9)


def test_a_model_holds_the_record_and_saves_it(tmp_path):
    model = FAMILIES["ViT"](input_shape=(16, 8, 1))
    assert model.preprocessing == kv.ViT.preprocessing.for_channels(1)
    model.preprocessing = {"mean": [0.5], "std": [0.25]}
    with pytest.raises(ValueError, match="dictionary with `mean` and `std`"):
        model.preprocessing = {"mean": [0.5]}
    assert model.preprocessing == Preprocessing((0.5,), (0.25,)), "stays as it was"
    model.preprocessing = {"mean": [0.5], "std": [0.25], "interpolation": "bilinear"}
    assert model.get_config()["preprocessing"] == model.preprocessing.to_dict()
    model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").preprocessing == model.preprocessing


# Images


def test_each_channel_is_resized_as_a_gray_image():
    image = picture(50, 40, 5)
    for i, plane in enumerate(np.moveaxis(resize_and_crop(image, (16, 16)), -1, 0)):
        alone = resize_and_crop(np.repeat(image[..., i : i + 1], 3, axis=-1), (16, 16))
        np.testing.assert_array_equal(plane, alone[..., 0])


def test_every_kind_of_input_gives_the_same(tmp_path):
    image, model = picture(45, 37), stand_in()
    path = save_picture(tmp_path / "a.png", image)
    expected = preprocess_input(image, model)
    whole = image / 255
    with path.open("rb") as file:
        files = path, str(path), path.read_bytes(), file, Image.fromarray(image)
        arrays = image[None], [image], whole, whole.astype("float32"), image.astype("int32")[None]
        for other in (*files, *arrays, image.astype("float64")):
            np.testing.assert_array_equal(preprocess_input(other, model), expected)
    mixed = preprocess_input([path, Image.fromarray(image), picture(20, 90)], model)
    dark = np.stack([image * 0.0, image])  # One range for a whole array.
    np.testing.assert_array_equal(preprocess_input(dark, model)[1:], expected)
    assert mixed.shape == (3, 16, 16, 3)
    np.testing.assert_array_equal(mixed[:2], np.repeat(expected, 2, axis=0))


def test_gray_becomes_color_and_color_gray():
    gray = picture(16, 16, 1)
    batch = preprocess_input(gray[..., 0], stand_in())
    assert batch.shape == (1, 16, 16, 3)
    np.testing.assert_array_equal(batch[..., 0], batch[..., 2])
    for image in (gray, np.repeat(gray, 3, axis=-1)):
        found = preprocess_input(image, stand_in(channels=1))
        np.testing.assert_array_equal(found, batch[..., :1])


@pytest.mark.parametrize("sides", [(1, 20_000), (20_000, 1)])
def test_only_what_the_crop_shows_of_a_long_image_is_resized(monkeypatch, sides):
    resized, resize = [], Image.Image.resize

    def spy(self, size, *arguments):
        resized.append(size[0] * size[1])
        return resize(self, size, *arguments)

    monkeypatch.setattr(Image.Image, "resize", spy)
    assert preprocess_input(picture(*sides), stand_in()).shape == (1, 16, 16, 3)
    assert max(resized) <= 130 * 16 * 16


@pytest.mark.parametrize("crop_ratio", [0.875, 1.0, 1.15])
@pytest.mark.parametrize("sides", [(40, 400), (400, 40), (41, 777)])
def test_a_long_image_shows_its_center(monkeypatch, sides, crop_ratio):
    axis = int(np.argmax(sides))
    # Four levels per pixel, and so at least five per pixel of the result.
    ramp = np.clip(4 * (np.arange(max(sides)) - max(sides) / 2) + 128, 0, 255).astype("uint8")
    image = np.broadcast_to(ramp[:, None] if axis == 0 else ramp, sides)[..., None]
    results = []
    for long in (8, 10**9):
        monkeypatch.setattr(images, "LONG", long)
        results.append(resize_and_crop(image, (32, 32), crop_ratio).astype(int))
    # By a pixel at most: the long sides are rounded to other numbers of pixels.
    assert np.abs(results[0] - results[1]).max() <= 8
    assert np.ptp(results[0]) > 120


# Files


def test_files_are_upright_in_color_or_gray_and_in_bytes(tmp_path):
    image, gray, alpha = picture(20, 30), picture(9, 8, 1), picture(9, 8, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # EXIF: rotate a quarter turn clockwise
    path = save_picture(tmp_path / "gray.png", gray)
    for found, wanted in (
        (decode_image(save_picture(tmp_path / "a.png", image, exif=exif)), np.rot90(image, -1)),
        (decode_image(save_picture(tmp_path / "b.png", alpha)), alpha[..., :3]),
        (decode_image(path), np.repeat(gray, 3, axis=-1)),
        (decode_image(path, channels=1), gray),
    ):
        np.testing.assert_array_equal(found, wanted)


def test_files_come_batch_by_batch_and_broken_ones_as_errors(tmp_path):
    model = stand_in((16, 24), crop_ratio=0.9)
    good = [save_picture(tmp_path / f"{i}.png", picture(20 + i, 30, seed=i)) for i in range(4)]
    broken = [tmp_path / "text.png", tmp_path / "missing.png", tmp_path / "cut.jpg"]
    broken[0].write_text("no image")
    save_picture(broken[2], picture(64, 64))
    broken[2].write_bytes(broken[2].read_bytes()[:-300])
    good.append(good[-1])  # Again, in the same batch.
    batches = list(batches_of_files([*good[:2], *broken, *good[2:]], model, batch_size=3))
    assert [len(batch.paths) for batch in batches] == [2, 1, 2]
    assert [path for batch in batches for path in batch.paths] == good
    images = np.concatenate([batch.images for batch in batches])
    np.testing.assert_array_equal(images, preprocess_input(good, model))
    errors = {path: error for batch in batches for path, error in batch.errors.items()}
    assert list(errors) == broken
    assert all(str(path) in str(error) for path, error in errors.items())
    assert isinstance(errors[broken[1]], FileNotFoundError)
    (batch,) = batches_of_files([str(tmp_path / "missing.png")], model)
    assert batch.images.shape == (0, 16, 24, 3) and batch.paths == [] and len(batch.errors) == 1
    assert list(batches_of_files([], model)) == []


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = save_picture(tmp_path / "large.png", picture(40, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    with pytest.raises(OSError, match=r"large.png can't .* limit of 1198 pixels"):
        decode_image(path)
    monkeypatch.setattr(decoding, "SMALL", 1100)
    monkeypatch.setattr(decoding, "PIXELS_PER_BYTE", 0.1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(OSError, match=r"large.png can't .* more than 1,100 pixels.*None is no lim"):
        decode_image(path)
    monkeypatch.setattr(decoding, "PIXELS_PER_BYTE", 1)
    for limit in (600, None):  # Pillow warns above a limit, and refuses twice as many.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with warnings.catch_warnings(action="ignore"):
            assert decode_image(path).shape == (40, 30, 3)


@pytest.mark.parametrize(
    "dtype, levels, suffix, wanted",
    [
        (">u2", [0, 255, 256, 65535], ".pgm", [0, 0, 1, 255]),
        ("uint16", [0, 255, 256, 65535], ".png", [0, 0, 1, 255]),
        ("int32", [7, 7, 7, 7], ".tif", [0, 0, 0, 0]),
        ("float32", [0, 0, np.nan, 1], ".tif", None),
    ],
)
def test_gray_of_more_than_8_bits_is_scaled(tmp_path, dtype, levels, suffix, wanted):
    path, array = tmp_path / f"x{suffix}", np.array([levels], dtype)
    if suffix == ".pgm":
        path.write_bytes(b"P5 4 1 65535\n" + array.tobytes())
    else:
        Image.fromarray(array).save(path)
    if wanted is None:
        with pytest.raises(OSError, match="not finite"):
            decode_image(path, 1)
    else:
        assert decode_image(path, 1).ravel().tolist() == wanted


@pytest.mark.parametrize("white_is_zero", [False, True])
@pytest.mark.parametrize("kind", ["u1", "u4", "u8", "u12", "u16", "u32", "i8", "i16", "f32"])
def test_a_tiff_of_gray_is_a_positive_or_refused(tmp_path, kind, white_is_zero):
    """As scanners and microscopes write it; Pillow itself inverts levels of up to 8 bits."""
    bits, sample = int(kind[1:]), "uif".index(kind[0]) + 1
    top = 2**bits - 1
    spans = {"u": (0, top), "i": (-(top + 1) // 2, top // 2), "f": (0, 1)}
    levels = np.linspace(*spans[kind[0]], 8)
    if bits % 8:
        row = "".join(f"{level:0{bits}b}" for level in np.rint(levels).astype(int))
        content = int(row, 2).to_bytes(bits, "big")
    else:
        content = levels.astype(f"<{kind[0]}{bits // 8}").tobytes()
    tags = {256: 8, 257: 1, 258: bits, 259: 1, 262: int(not white_is_zero), 273: 8, 277: 1}
    tags |= {278: 1, 279: len(content), 339: sample}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    start = struct.pack("<2sHI", b"II", 42, 8 + len(content))
    end = struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "x.tif").write_bytes(start + content + end)
    if kind == "i8" or (white_is_zero and kind in ("u12", "u32", "i16")):
        with pytest.raises(OSError, match=r"can't be decoded"):
            decode_image(tmp_path / "x.tif")
        return
    wanted = np.linspace(0, 255, 8) if bits > 1 else np.repeat([0, 255], 4)
    wanted = wanted[::-1] if white_is_zero else wanted
    for found in (decode_image(tmp_path / "x.tif", 1), images.pixels_of(tmp_path / "x.tif")):
        np.testing.assert_allclose(found[0, :, 0], wanted, atol=1 if bits > 4 else 10)


@pytest.mark.parametrize("kind", ["EPS", "a pipe", "a directory"])
def test_what_is_no_image_file_is_not_opened(tmp_path, monkeypatch, kind):
    path, started = tmp_path / "cat.jpg", tmp_path / "started"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
        (tmp_path / "gs").write_text(f"#!/bin/sh\n[ $1 = --version ] || touch {started}\n")
        (tmp_path / "gs").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = "can't be decoded .* as none of JPEG" if kind == "EPS" else "is not a file"
    with pytest.raises(OSError, match=f"cat.jpg {words}"):
        decode_image(path)
    assert not started.exists()
