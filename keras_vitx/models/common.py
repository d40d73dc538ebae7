"""Layers that several families have in common."""

import keras

from keras_vitx.checks import check, check_counts
from keras_vitx.layers import ClassToken


def class_tokens(distillation_token: bool = False) -> list[keras.layers.Layer]:
    """Return the layers that prepend the class token, followed by the distillation token if any."""
    distillation = [ClassToken(name="dist_token")] if distillation_token else []
    return [*distillation, ClassToken(name="cls_token")]


def last_norm(epsilon: float = 1e-6, name: str = "norm") -> keras.layers.Layer:
    """Return the norm after the last block."""
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name)


def check_heads(dim: int, num_heads: int) -> None:
    """Raise a ValueError unless `num_heads` divides `dim`."""
    check_counts(dim=dim, num_heads=num_heads)
    check(dim % num_heads == 0, f"`num_heads` must divide dim={dim}.", num_heads)
