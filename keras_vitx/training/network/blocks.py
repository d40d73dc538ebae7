"""The blocks of a model that is built already, whatever its family."""

from collections.abc import Iterator

import keras


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Return the layers of a model in order; those of nested models in their places."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)
        else:
            yield layer


def is_block(layer: keras.layers.Layer) -> bool:
    """Return whether `layer` is a block of the zoo: residual branches with stochastic depth."""
    return hasattr(layer, "set_drop_path")


def updates_class_tokens_only(block: keras.layers.Layer) -> bool:
    """Return whether `block` is one of CaiT's class-attention blocks."""
    return hasattr(block.attention, "num_class_tokens")
