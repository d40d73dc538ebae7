"""The short ways to the operations of `keras.ops`."""

import keras
import numpy as np
import pytest
from harness import array
from keras import ops

from keras_vitx.layers import eager

X = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")


def heads(ops, x, axes=(0, 2, 1, 3)):
    return ops.transpose(ops.reshape(x, (2, 6, 2, 2)), axes)


CALLS = {
    "reshape": lambda ops, x: ops.reshape(x, (2, -1)),
    "transpose": lambda ops, x: ops.transpose(x, (2, 0, 1)),
    "split": lambda ops, x: ops.concatenate(ops.split(x, 3, axis=1)[::-1], axis=1),
    "split at places": lambda ops, x: ops.split(x, [1, 4], axis=1)[1],
    "matmul": lambda ops, x: ops.matmul(x, ops.transpose(x, (0, 2, 1))),
    "matmul of heads": lambda ops, x: ops.matmul(heads(ops, x), heads(ops, x, (0, 2, 3, 1))),
    "matmul in two precisions": lambda ops, x: ops.matmul(x, ops.cast(x[:1, :4], "int32")),
    "stack": lambda ops, x: ops.stack([x, 2 * x], axis=-1),
    "cast": lambda ops, x: ops.cast(x, "float32"),
    "cast to another precision": lambda ops, x: ops.cast(x, "int32"),
    "one that is passed on": lambda ops, x: ops.exp(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_as_in_keras(call):
    expected, got = (call(module, ops.convert_to_tensor(X)) for module in (ops, eager))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(array(got), array(expected))
    assert eager.shape(got) == ops.shape(expected)
    # Symbolic tensors go to Keras.
    assert call(eager, keras.KerasTensor(X.shape)).shape == tuple(expected.shape)
