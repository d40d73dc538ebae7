"""Layer-wise decay of the learning rate."""

import keras

from keras_vitx.training.network.blocks import is_block, layers_of


def rate_factors(model: keras.Model, decay: float) -> tuple[float, ...]:
    r"""Return the factor of the learning rate for each trainable variable of `model`.

    With $L$ blocks, the layers before the first block have the factor $d^{L + 1}$, block
    $i$ (from 1) has $d^{L + 1 - i}$, and the layers after the last one have 1 (BEiT,
    Appendix; the head learns fastest). A layer between two blocks, such as a class token,
    has the factor of the block before it. In a model without blocks, each layer with
    weights counts as one.

    Args:
        model: The built model.
        decay: $d$, in (0, 1].

    Returns:
        Factors in the order of `model.trainable_variables`.
    """
    layers = [layer for layer in layers_of(model) if layer.trainable_variables]
    counts = [layer for layer in layers if is_block(layer)] or layers[1:]
    number, numbers = 0, {}
    for layer in layers:
        if any(layer is block for block in counts):
            number += 1
        after = layer is not counts[-1] and number == len(counts) if counts else False
        for variable in layer.trainable_variables:
            numbers.setdefault(id(variable), number + after)
    top = max(numbers.values())
    return tuple(decay ** (top - numbers.get(id(v), top)) for v in model.trainable_variables)
