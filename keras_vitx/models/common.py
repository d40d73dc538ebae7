"""Layers that several families have in common."""

import keras

from keras_vitx.layers import ClassToken


def class_tokens(distillation_token: bool = False) -> list[keras.layers.Layer]:
    """Return the layers that prepend the class token, followed by the distillation token if any."""
    distillation = [ClassToken(name="dist_token")] if distillation_token else []
    return [*distillation, ClassToken(name="cls_token")]


def last_norm() -> keras.layers.Layer:
    """Return the norm after the last block."""
    return keras.layers.LayerNormalization(epsilon=1e-6, name="norm")
