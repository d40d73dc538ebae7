"""Stochastic depth of a model that is built already."""

import keras
import numpy as np

from keras_vitx.training.network.blocks import is_block, layers_of, updates_class_tokens_only


def set_drop_path(model: keras.Model, rate: float, rises: bool = True) -> None:
    """Set the rate of stochastic depth in the blocks of `model`, in place.

    The model can be saved and loaded with it. Compile it afterwards: a compiled step keeps
    the old rates.

    Args:
        model: A model of the zoo, or one that contains its blocks.
        rate: The rate, in [0, 1).
        rises: Whether the rate rises linearly over the blocks, from 0 in the first to `rate`
            in the last. If not, all blocks have the same rate, as in CaiT. The blocks of
            CaiT's class attention are never dropped.

    Raises:
        ValueError: if `rate` is not in [0, 1), or the model has no blocks.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"`drop_path` must be in [0, 1). Received: {rate!r}.")
    blocks = [layer for layer in layers_of(model) if is_block(layer)]
    blocks = [block for block in blocks if not updates_class_tokens_only(block)]
    if not blocks:
        raise ValueError(
            f"`drop_path`: the model {model.name!r} has no blocks whose branches could be dropped. "
            "Give drop_path=None."
        )
    rates = np.linspace(0 if rises else rate, rate, len(blocks))
    for block, one in zip(blocks, rates, strict=True):
        block.set_drop_path(float(one))
