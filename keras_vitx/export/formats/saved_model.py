"""TensorFlow SavedModels, from which other formats are converted."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from keras_vitx.export.graph import INPUT, Format, Graph, half_arrays

BYTES = "image_bytes"
"""Name of a server's input; over REST, each value is `{"b64": "..."}`."""

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image that a server decodes, such as 8192 x 8192."""


def write(graph: Graph, directory: Path) -> None:
    """Write an endpoint and a signature per size, and `serving_default`, a server's if `graph.top`.

    `model.export` does not name outputs, stores each weight twice, and has one size and precision.
    """
    import tensorflow as tf

    module, stored, signatures = tf.Module(), {}, {}
    for name, model in graph.models.items():
        spec = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name=INPUT)
        traced = {"input_signature": [spec], "autograph": False}
        endpoint = tf.function(_stateless(model, graph.precision, stored), **traced)
        setattr(module, name, endpoint)
        signatures[name] = tf.function(
            lambda images, endpoint=endpoint: graph.name_outputs(endpoint(images)), **traced
        )
    default = signatures["serve"]
    if graph.top:
        default = _server(graph, _stateless(graph.networks["serve"], graph.precision, stored))
    module.stored = list(stored.values())
    signatures = {"serving_default": default, **signatures}
    tf.saved_model.save(module, str(directory), signatures=signatures)


def _stateless(model, precision, stored):
    """Return a function of images, with weights in `stored`, where models share equal ones."""
    import tensorflow as tf

    half, weights = half_arrays(model, precision), []
    for variable in model.variables:
        array = half.get(id(variable), keras.ops.convert_to_numpy(variable))
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in stored:
            stored[key] = tf.Variable(array, trainable=False)
        weights.append((variable, stored[key]))

    def predict(images):
        values = [(variable, tf.cast(value, variable.dtype)) for variable, value in weights]
        with keras.StatelessScope(values):
            return model(images, training=False)

    return predict


def _server(graph: Graph, predict: Callable[[Any], Any]):
    """Return a TensorFlow function of `image_bytes`, JPEG, PNG or GIF files as strings `(batch,)`.

    It returns the top classes, strings, and `probabilities`, float32, in descending order.
    """
    import tensorflow as tf

    preprocessing, channels = graph.preprocessing, len(graph.preprocessing.mean)
    shape = tf.TensorSpec((*preprocessing.size, channels), tf.float32)

    def serve(image_bytes):
        images = tf.map_fn(
            lambda file: preprocessing(decode_image(file, channels)[None])[0],
            image_bytes,
            fn_output_signature=shape,
        )
        probabilities = tf.cast(predict(images), tf.float32)
        if probabilities.shape[1] < len(graph.classes):
            # One sigmoid output is the probability of the second of two classes.
            probabilities = tf.concat([1 - probabilities, probabilities], axis=1)
        best, indices = tf.math.top_k(probabilities, graph.top)
        return {"classes": tf.gather(tf.constant(graph.classes), indices), "probabilities": best}

    spec = tf.TensorSpec((None,), tf.string, name=BYTES)
    return tf.function(serve, input_signature=[spec], autograph=False)


def decode_image(file, channels: int = 3):
    """Decode a file as Pillow does, but ignore EXIF, to uint8 `(height, width, channels)`."""
    import tensorflow as tf

    count = tf.reduce_prod(_sides(file))
    check = tf.debugging.assert_less_equal(
        count,
        tf.constant(MAX_PIXELS, tf.int64),
        f"{BYTES}: an image must have at most {MAX_PIXELS:,} pixels.",
    )
    with tf.control_dependencies([check]):
        file = tf.identity(file)
    # Also decodes PNG. In color, because other grays than Pillow's are made from it, or none.
    image = tf.cond(
        tf.equal(tf.strings.substr(file, 0, 4), b"GIF8"),
        lambda: tf.io.decode_image(file, 3, expand_animations=False),
        lambda: tf.io.decode_jpeg(file, 3, dct_method="INTEGER_ACCURATE"),
    )
    image = tf.ensure_shape(image, (None, None, 3))
    return image if channels == 3 else _gray(image)


def _gray(image):
    """Return Pillow's gray, a rounded sum in 16 bits of fractions, of a color image of uint8."""
    import tensorflow as tf

    sums = tf.tensordot(tf.cast(image, tf.int32), [[19595], [38470], [7471]], 1)
    return tf.cast(tf.bitwise.right_shift(sums + (1 << 15), 16), tf.uint8)


def _sides(file):
    """Return the two sides of an image from the header of its file."""
    import tensorflow as tf

    def read(start, dtype, little_endian):
        sides = tf.strings.substr(file, start, 2 * dtype.size)
        return tf.cast(tf.io.decode_raw(sides, dtype, little_endian), tf.int64)

    first = tf.strings.substr(file, 0, 4)
    cases = [
        (tf.equal(first, b"\x89PNG"), lambda: read(16, tf.int32, False)),
        (tf.equal(first, b"GIF8"), lambda: read(6, tf.uint16, True)),
    ]
    return tf.case(cases, lambda: tf.cast(tf.image.extract_jpeg_shape(file)[:2], tf.int64), True)


@contextlib.contextmanager
def temporary_saved_model(graph: Graph, path: Path) -> Iterator[Path]:
    """Yield a temporary SavedModel beside `path`, from which another format is converted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        write(Graph({"serve": graph.model}, graph.outputs), Path(directory, "saved_model"))
        yield Path(directory, "saved_model")


FORMAT = Format(
    name="saved_model",
    title="a SavedModel",
    suffix="",
    backend="tensorflow",
    needs=("tensorflow",),
    extra="export",
    write=write,
    matches=lambda path: (path / "saved_model.pb").is_file(),
    risk="its graph may read and write files",
    any_size=True,
)
