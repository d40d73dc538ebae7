"""The moving average of the weights, which Keras's optimizers keep (`use_ema`)."""

import contextlib
from collections.abc import Iterator

import keras
import numpy as np

from keras_vitx.keras_internals import moving_average


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Within this context, `model` has the moving average of its weights, if one is kept.

    The average covers the trainable variables; running statistics of batch normalization
    stay the current ones. A file saved within holds the average both as the weights and as
    the optimizer's state, so training may continue from it. (Keras's `SwapEMAWeights`
    exchanges the two, so that the file would hold the current weights as the average.)

    Args:
        model: A compiled model. Between the steps of `fit`, as in the epoch's callbacks.
    """
    pairs = moving_average(getattr(model, "optimizer", None))
    own = [_copy(variable) for variable, _ in pairs]
    try:
        for variable, average in pairs:
            variable.assign(_copy(average))
        yield
    finally:
        for (variable, _), value in zip(pairs, own, strict=True):
            variable.assign(value)


def _copy(variable):
    # Under PyTorch, `convert_to_numpy` shares the variable's memory; under JAX, an assigned
    # array would be shared by two variables, of which the next step donates one.
    return np.array(keras.ops.convert_to_numpy(variable.value))
