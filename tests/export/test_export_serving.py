"""The signature of a server: encoded images in, class names and probabilities out."""

import io
import struct
import zlib

import keras
import numpy as np
import pytest
from harness import randomize
from PIL import Image

import keras_vitx as kv
from keras_vitx.data.images import pixels_of, with_channels
from keras_vitx.data.predictions import class_names
from keras_vitx.export.formats.saved_model import decode_image

pytestmark = pytest.mark.backend_free


def picture(height, width):
    """A smooth picture, which JPEG keeps."""
    rows, columns = np.mgrid[:height, :width]
    levels = [rows * 255 / height, columns * 255 / width, (rows + columns) % 256]
    return Image.fromarray(np.stack(levels, axis=-1).astype("uint8"))


def written(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


FILES = (
    written(picture(60, 40), "JPEG", quality=80),
    written(picture(33, 70), "PNG"),
    written(picture(50, 50).convert("L"), "JPEG"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and the default signature of its export."""
    tf = pytest.importorskip("tensorflow")
    model = kv.ViT(16, 1, 2, patch_size=8, input_shape=(24, 32, 3), classes=4)
    randomize(model)
    model.class_names = ("cat", "dog", "fish", "owl")
    model.preprocessing = model.preprocessing.replace(crop_ratio=0.9)
    path = tmp_path_factory.mktemp("served") / "1"
    exported = kv.export(model, path, serving=3, verify=False, verbose=False)
    assert exported.classes == model.class_names
    loaded = tf.saved_model.load(str(path))
    return model, loaded, loaded.signatures["serving_default"]


def test_contract(served):
    """Names, dtypes and shapes of TensorFlow Serving's predict API."""
    _, loaded, signature = served
    ((name, spec),) = signature.structured_input_signature[1].items()
    assert (name, spec.dtype.name, spec.shape.as_list()) == ("image_bytes", "string", [None])
    outputs = {
        name: (spec.dtype.name, spec.shape.as_list())
        for name, spec in signature.structured_outputs.items()
    }
    assert outputs == {"classes": ("string", [None, 3]), "probabilities": ("float32", [None, 3])}
    # Pixels are taken by the other one.
    ((name, spec),) = loaded.signatures["serve"].structured_input_signature[1].items()
    assert (name, spec.dtype.name) == ("images", "uint8")


def test_files_of_several_sizes_in_one_batch(served):
    import tensorflow as tf

    model, _, signature = served
    outputs = signature(image_bytes=tf.constant(list(FILES)))
    inputs = kv.preprocess_input([Image.open(io.BytesIO(file)) for file in FILES], model)
    expected = kv.decode_predictions(model.predict(inputs, verbose=0), 3, model)
    names = [[name.decode() for name in row] for row in outputs["classes"].numpy()]
    assert names == [[name for _, name, _ in row] for row in expected]
    probabilities = [[value for *_, value in row] for row in expected]
    assert np.ptp(probabilities, axis=0).max() > 1e-2
    # As in memory, since both the decoding and the resizing equal Pillow's.
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-5)
    (one,) = signature(image_bytes=tf.constant([FILES[1]]))["probabilities"].numpy()
    np.testing.assert_allclose(one, probabilities[1], atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "format"),
    [("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("L", "GIF")],
)
def test_files_are_decoded_to_color_and_gray_as_by_pillow(mode, format, channels):
    tf = pytest.importorskip("tensorflow")
    frames = {"save_all": True, "append_images": [picture(20, 30)]} if format == "GIF" else {}
    file = written(picture(20, 30).convert(mode), format, **frames)
    found = tf.function(lambda: decode_image(tf.constant(file), channels))().numpy()
    wanted = with_channels(pixels_of(file), channels)
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1


def header(format, height, width):
    """The beginning of an image file whose header says a size, with no pixels."""
    if format == "PNG":
        chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        check = struct.pack(">I", zlib.crc32(chunk))
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + check
    if format == "GIF":
        return b"GIF89a" + struct.pack("<HH", width, height) + bytes(16)
    file = written(picture(16, 16), "JPEG")
    start = file.index(b"\xff\xc0") + 5
    return file[:start] + struct.pack(">HH", height, width) + file[start + 4 :]


@pytest.mark.parametrize("format", ("PNG", "GIF", "JPEG"))
def test_a_file_of_too_many_pixels_is_not_decoded(served, format):
    tf = pytest.importorskip("tensorflow")
    _, _, signature = served
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 67,108,864 pixels"):
        signature(image_bytes=tf.constant([header(format, 30_000, 30_000)]))


def test_one_sigmoid_output_has_two_classes(tmp_path):
    tf = pytest.importorskip("tensorflow")
    options = {"classes": 1, "classifier_activation": "sigmoid", "input_shape": (24, 32, 3)}
    model = kv.ViT(16, 1, 2, patch_size=8, **options)
    randomize(model)
    model.class_names = ("cat", "dog")
    path = kv.export(model, tmp_path / "1", serving=2, verify=False, verbose=False).path
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    outputs = signature(image_bytes=tf.constant(list(FILES)))
    inputs = kv.preprocess_input([Image.open(io.BytesIO(file)) for file in FILES], model)
    for names, values, dog in zip(
        outputs["classes"].numpy(),
        outputs["probabilities"].numpy(),
        model.predict(inputs, verbose=0)[:, 0],
        strict=True,
    ):
        found = dict(zip(names, values, strict=True))
        assert found == pytest.approx({b"cat": 1 - dog, b"dog": dog}, abs=1e-5)


def test_a_name_for_each_class():
    model = kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=2)
    assert class_names(model, 2) == ("class 0", "class 1")
    assert class_names(model, 1000)[0] == "tench"
    model.class_names = ("cat", "dog")
    assert class_names(keras.Sequential([model]), 2) == ("cat", "dog")
