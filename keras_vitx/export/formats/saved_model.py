"""TensorFlow SavedModels, from which other formats are converted."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from keras_vitx.export.formats.base import INPUT, Format, Graph, half_arrays

CONTENTS = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "export.json"}
"""Contents of the directory."""

BYTES = "image_bytes"
"""Name of a server's input; over REST, each value is `{"b64": "..."}`."""

MAX_PIXELS = 1 << 26
"""Maximum number of pixels of an image that a server decodes, such as 8192 x 8192."""

SIDES = {"PNG": (b"\x89PNG", 16, "int32", False), "GIF": (b"GIF8", 6, "uint16", True)}
"""By format: its first bytes; offset and dtype of width and height, and whether they are
little-endian."""


def write(graph: Graph, directory: Path) -> None:
    """Write an endpoint and a signature per size, and `serving_default`, a server's if `graph.top`.

    `model.export` does not name outputs, stores each weight twice, and has one size and precision.
    """
    import tensorflow as tf

    module = tf.Module()
    stored, signatures = {}, {}
    for name, model in graph.models.items():
        spec = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name=INPUT)
        predict = _stateless(model, graph.precision, stored)
        endpoint = tf.function(predict, input_signature=[spec], autograph=False)
        setattr(module, name, endpoint)
        signatures[name] = tf.function(
            lambda images, endpoint=endpoint: graph.name_outputs(endpoint(images)),
            input_signature=[spec],
            autograph=False,
        )
    default = signatures["serve"]
    if graph.top:
        *_, preprocessing, network = graph.model.layers
        predict = _stateless(network, graph.precision, stored)
        default = _server(preprocessing, predict, graph.classes, graph.top)
    module.stored = list(stored.values())
    signatures = {"serving_default": default, **signatures}
    tf.saved_model.save(module, str(directory), signatures=signatures)


def _stateless(model, precision, stored):
    """Return a function of images, with weights in `stored`, where models share equal ones."""
    import tensorflow as tf

    half = half_arrays(model, precision)
    weights = []
    for variable in model.variables:
        array = half.get(id(variable))
        if array is None:
            array = keras.ops.convert_to_numpy(variable)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in stored:
            stored[key] = tf.Variable(array, trainable=False)
        weights.append((variable, stored[key]))

    def predict(images):
        values = [(variable, tf.cast(value, variable.dtype)) for variable, value in weights]
        with keras.StatelessScope(values):
            return model(images, training=False)

    return predict


def _server(preprocessing: keras.layers.Layer, predict: Callable[[Any], Any], classes, top: int):
    """Return a TensorFlow function of `image_bytes`, JPEG, PNG or GIF files as strings `(batch,)`.

    It returns the `top` `classes`, strings, and `probabilities`, float32, in descending order.
    """
    import tensorflow as tf

    channels = len(preprocessing.mean)
    shape = tf.TensorSpec((*preprocessing.size, channels), tf.float32)

    def serve(image_bytes):
        images = tf.map_fn(
            lambda file: preprocessing(decode_image(file, channels)[None])[0],
            image_bytes,
            fn_output_signature=shape,
        )
        probabilities = tf.cast(predict(images), tf.float32)
        best, indices = tf.math.top_k(probabilities, top)
        return {"classes": tf.gather(tf.constant(list(classes)), indices), "probabilities": best}

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

    def of_header(start, dtype, little_endian):
        def read():
            sides = tf.strings.substr(file, start, 2 * tf.dtypes.as_dtype(dtype).size)
            return tf.cast(tf.io.decode_raw(sides, dtype, little_endian), tf.int64)

        return read

    def of_jpeg():
        return tf.cast(tf.image.extract_jpeg_shape(file)[:2], tf.int64)

    cases = [
        (tf.equal(tf.strings.substr(file, 0, len(first)), first), of_header(*header))
        for first, *header in SIDES.values()
    ]
    return tf.case(cases, default=of_jpeg, exclusive=True)


@contextlib.contextmanager
def temporary_saved_model(graph: Graph, path: Path) -> Iterator[Path]:
    """Yield a temporary SavedModel beside `path`, from which another format is converted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        write(Graph({"serve": graph.model}, graph.outputs), Path(directory, "saved_model"))
        yield Path(directory, "saved_model")


def matches(path: Path) -> bool:
    """Return whether a path is the directory of a SavedModel and holds nothing else."""
    names = {each.name for each in path.iterdir()} if path.is_dir() else set()
    return "saved_model.pb" in names and names <= CONTENTS


FORMAT = Format(
    name="saved_model",
    title="a SavedModel",
    suffix="",
    backend="tensorflow",
    needs=("tensorflow",),
    extra="export",
    write=write,
    matches=matches,
    risk="its graph may read and write files",
    any_size=True,
)
