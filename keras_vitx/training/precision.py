"""Change the precision of an existing model."""

import keras

from keras_vitx.keras_internals import sublayers

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def set_precision(model: keras.Model, precision: str) -> None:
    """Set the precision in which `model` computes; its variables stay in float32.

    The last layer, the classifier, also computes in float32.

    Args:
        model: A model, changed in place.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Raises:
        ValueError: if `precision` is unknown.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {PRECISIONS}. Received: {precision!r}.")
    classifier = set(map(id, sublayers(model.layers[-1])))
    for layer in sublayers(model):
        if id(layer) not in classifier:
            layer.dtype_policy = precision
