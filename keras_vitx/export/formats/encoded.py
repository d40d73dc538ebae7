"""The signature of a server: encoded images in, class names and probabilities out."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

INPUT = "image_bytes"
"""Name of the input; over REST, each value is `{"b64": "..."}`."""

HEADER = 4096
"""Bytes at the beginning of a file that are searched for its EXIF orientation."""

ORIENTATION = (
    # The entry 0x0112, one SHORT, in either byte order.
    r"\C*?Exif\x00\x00"
    r"(?:II\*\x00\C*?\x12\x01\x03\x00\x01\x00\x00\x00([\x01-\x08])\x00"
    r"|MM\x00\*\C*?\x01\x12\x00\x03\x00\x00\x00\x01\x00([\x01-\x08]))\C*"
)
"""Regular expression (RE2) of a header with an EXIF orientation, its group."""


def signature(
    before: keras.layers.Layer,
    predict: Callable[[Any], Any],
    classes: Sequence[str],
    top: int,
):
    """Return a TensorFlow function of `image_bytes`, strings `(batch,)`.

    Each string is a JPEG, PNG or GIF file. The images need not have one size. The function
    returns `classes`, strings `(batch, top)`, and `probabilities`, float32 `(batch, top)`, in
    descending order.

    Args:
        before: An `ImagePreprocessing`.
        predict: A function from preprocessed images to probabilities.
        classes: Names of the classes.
        top: Number of classes returned.
    """
    import tensorflow as tf

    channels = len(before.mean)
    shape = tf.TensorSpec((*before.size, channels), tf.float32)

    def prepared(file):
        return before(decoded(file, channels)[None])[0]

    def serve(image_bytes):
        images = tf.map_fn(prepared, image_bytes, fn_output_signature=shape)
        probabilities = tf.cast(predict(images), tf.float32)
        best, indices = tf.math.top_k(probabilities, top)
        return {"classes": tf.gather(tf.constant(list(classes)), indices), "probabilities": best}

    spec = tf.TensorSpec((None,), tf.string, name=INPUT)
    return tf.function(serve, input_signature=[spec], autograph=False)


def decoded(file, channels: int = 3):
    """Decode an image file, upright, to uint8 `(height, width, channels)`.

    The pixels equal those of Pillow, by the same version of the inverse cosine transform.
    """
    import tensorflow as tf

    # For PNG and GIF, too.
    image = tf.io.decode_jpeg(file, channels=channels, dct_method="INTEGER_ACCURATE")
    turn = orientation(file)

    def if_in(turns, change):
        return tf.cond(tf.reduce_any(turn == tf.constant(turns)), change, lambda: image)

    image = if_in((5, 6, 7, 8), lambda: tf.transpose(image, (1, 0, 2)))
    image = if_in((2, 3, 6, 7), lambda: image[:, ::-1])
    return if_in((3, 4, 7, 8), lambda: image[::-1])


def orientation(file):
    """Return the EXIF orientation of an image file, 1 to 8; 1, upright, if it has none."""
    import tensorflow as tf

    header = tf.strings.substr(file, 0, HEADER)
    found = tf.strings.regex_full_match(header, ORIENTATION)
    value = tf.strings.regex_replace(header, ORIENTATION, r"\1\2")
    return tf.cast(tf.io.decode_raw(tf.where(found, value, b"\x01"), tf.uint8)[0], tf.int32)
