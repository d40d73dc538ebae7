"""Values of the variables of a fused model."""

from typing import Any

import keras
import numpy as np
from keras import ops


class Values(dict):
    """Values by the paths of the variables: a variable of the original model, or a new array.

    Only what changes is copied.
    """

    @classmethod
    def of(cls, model: keras.Model) -> "Values":
        """Return the values of all variables of `model`."""
        return cls({variable.path: variable for variable in model.weights})

    def read(self, path: str) -> np.ndarray:
        """Return a value as a float32 array."""
        return array(self[path])

    def drop(self, prefix: str) -> None:
        """Drop the variable of this path, or those of the layer of this path."""
        for path in [path for path in self if path == prefix or path.startswith(f"{prefix}/")]:
            del self[path]


def array(value: Any) -> np.ndarray:
    """Return a tensor or a variable as a float32 array."""
    return ops.convert_to_numpy(ops.stop_gradient(ops.cast(value, "float32")))
