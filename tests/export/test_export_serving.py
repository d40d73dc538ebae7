"""The signature of a server: encoded images in, class names and probabilities out."""

import io
import struct

import keras
import numpy as np
import pytest
from harness import randomized
from PIL import Image

import keras_vitx as kv
from keras_vitx.data.images import pixels_of, with_channels
from keras_vitx.data.predictions import class_names
from keras_vitx.export.formats.saved_model import decode_image

pytestmark = pytest.mark.backend_free
tf = pytest.importorskip("tensorflow")


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


def probabilities_of(model):
    inputs = kv.preprocess_input([Image.open(io.BytesIO(file)) for file in FILES], model)
    return model.predict(inputs, verbose=0)


def served_by(directory, model, names):
    """Return what the export of a model, with class names and a crop, loads as."""
    model.class_names = names
    model.preprocessing = model.preprocessing.replace(crop_ratio=0.9)
    options = {"serving": min(3, len(names)), "verify": False, "verbose": False}
    exported = kv.export(model, directory / "1", **options)
    return tf.saved_model.load(str(exported.path))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and its export."""
    model = randomized("ViT", input_shape=(24, 32, 3), classes=4)
    names = ("cat", "dog", "fish", "owl")
    return model, served_by(tmp_path_factory.mktemp("served"), model, names)


def test_contract_of_tensorflow_serving(served):
    """Names, dtypes and shapes of the predict API."""
    _, loaded = served
    signature = loaded.signatures["serving_default"]
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
    model, loaded = served
    signature = loaded.signatures["serving_default"]
    outputs = signature(image_bytes=tf.constant(list(FILES)))
    expected = kv.decode_predictions(probabilities_of(model), 3, model)
    names = [[name.decode() for name in row] for row in outputs["classes"].numpy()]
    assert names == [[name for _, name, _ in row] for row in expected]
    probabilities = [[value for *_, value in row] for row in expected]
    assert np.ptp(probabilities, axis=0).max() > 1e-2
    # As in memory, since both the decoding and the resizing equal Pillow's.
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-5)
    (one,) = signature(image_bytes=tf.constant([FILES[1]]))["probabilities"].numpy()
    np.testing.assert_allclose(one, probabilities[1], atol=1e-5)


def test_one_sigmoid_output_has_two_classes(tmp_path):
    options = {"classes": 1, "classifier_activation": "sigmoid", "input_shape": (24, 32, 3)}
    model = randomized("ViT", **options)
    loaded = served_by(tmp_path, model, ("cat", "dog"))
    outputs = loaded.signatures["serving_default"](image_bytes=tf.constant(list(FILES)))
    rows = zip(outputs["classes"].numpy(), outputs["probabilities"].numpy(), strict=True)
    for (names, values), (dog,) in zip(rows, probabilities_of(model), strict=True):
        found = dict(zip(names, values, strict=True))
        assert found == pytest.approx({b"cat": 1 - dog, b"dog": dog}, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "format"),
    [("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("L", "GIF")],
)
def test_files_are_decoded_to_color_and_gray_as_by_pillow(mode, format, channels):
    frames = {"save_all": True, "append_images": [picture(20, 30)]} if format == "GIF" else {}
    file = written(picture(20, 30).convert(mode), format, **frames)
    found = tf.function(lambda: decode_image(tf.constant(file), channels))().numpy()
    wanted = with_channels(pixels_of(file), channels)
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1


def with_size(format, side):
    """A small image file whose header says another size."""
    file = bytearray(written(picture(16, 16), format))
    places = {"PNG": (16, ">II"), "GIF": (6, "<HH"), "JPEG": (file.find(b"\xff\xc0") + 5, ">HH")}
    start, layout = places[format]
    struct.pack_into(layout, file, start, side, side)
    return bytes(file)


@pytest.mark.parametrize("format", ("PNG", "GIF", "JPEG"))
def test_a_file_of_too_many_pixels_is_not_decoded(served, format):
    image_bytes = tf.constant([with_size(format, 30_000)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 67,108,864 pixels"):
        served[1].signatures["serving_default"](image_bytes=image_bytes)


def test_a_name_for_each_class(classifier):
    assert class_names(classifier, 2) == ("class 0", "class 1")
    assert class_names(classifier, 1000)[0] == "tench"
    model = keras.models.clone_model(classifier)
    model.class_names = ("cat", "dog")
    assert class_names(keras.Sequential([model]), 2) == ("cat", "dog")
