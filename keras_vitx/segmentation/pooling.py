"""Means over a grid of cells, of pyramid pooling."""

from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vitx")
class GridPooling(keras.layers.Layer):
    r"""The means over a grid of cells that cover a map.

    Of $R$ rows, cell $i$ of $s$ covers those from $\lfloor i R / s \rfloor$ to before
    $\lceil (i + 1) R / s \rceil$; likewise for columns. Cells overlap where $s$ does not
    divide $R$, also where it is larger. (Keras's `AdaptiveAveragePooling2D` takes the same
    cells, but for $s > R$ it fails in TensorFlow's graphs.)

    Input: `(batch, rows, columns, channels)`. Output: `(batch, size, size, channels)`.

    Args:
        size: $s$.
    """

    def __init__(self, size: int, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, x):
        rows, columns = (
            ops.convert_to_tensor(cell_weights(side, self.size), x.dtype) for side in x.shape[1:3]
        )
        # One axis at a time: of three factors, PyTorch orders the products by the batch size.
        return ops.einsum("jc,bicd->bijd", columns, ops.einsum("ir,brcd->bicd", rows, x))

    def compute_output_shape(self, input_shape: Any) -> tuple:
        """Return `(batch, size, size, channels)`."""
        return input_shape[0], self.size, self.size, input_shape[-1]

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal layer."""
        return {**super().get_config(), "size": self.size}


def cell_weights(length: int, size: int) -> np.ndarray:
    """Return the share of each of `length` positions in each of `size` cells, (size, length)."""
    first = np.arange(size) * length // size
    last = -(-(np.arange(size) + 1) * length // size)
    positions = np.arange(length)
    inside = (positions >= first[:, None]) & (positions < last[:, None])
    return (inside / inside.sum(1, keepdims=True)).astype("float32")
