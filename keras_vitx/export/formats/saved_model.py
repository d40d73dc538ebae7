"""TensorFlow SavedModels."""

from collections.abc import Sequence
from pathlib import Path

import keras


def write(model: keras.Model, names: Sequence[str], directory: Path) -> None:
    """Write an endpoint `serve`, and the signatures `serve` and `serving_default`.

    `model.export` does not name outputs, and stores each weight twice.
    """
    import tensorflow as tf

    module = tf.Module()
    module.stored = [tf.Variable(v.value, trainable=False) for v in model.variables]

    def predict(images):
        with keras.StatelessScope(zip(model.variables, module.stored, strict=True)):
            return model(images, training=False)

    def by_name(images):
        return dict(zip(names, keras.tree.flatten(module.serve(images)), strict=True))

    (images,) = model.inputs
    spec = tf.TensorSpec(images.shape, images.dtype, name="images")
    module.serve = tf.function(predict, input_signature=[spec], autograph=False)
    signature = tf.function(by_name, input_signature=[spec], autograph=False)
    signatures = {"serving_default": signature, "serve": signature}
    try:
        tf.saved_model.save(module, str(directory), signatures=signatures)
    except tf.errors.ResourceExhaustedError as error:  # TensorFlow's form of a full disk.
        raise OSError(error.message) from error
