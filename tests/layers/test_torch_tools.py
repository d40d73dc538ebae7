"""PyTorch's hooks, on children that a fast path would not call, and its tracer."""

import keras
import pytest
from cases import LAYERS
from harness import call
from plain import made

from keras_vitx.keras_internals import sublayers

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's tools")
torch = pytest.importorskip("torch")


def parts_of(layer):
    """The children that compute in training; the kernel of a depthwise convolution is read."""
    parts = [part for part in sublayers(layer)[1:] if getattr(part, "rate", 1)]
    return [part for part in parts if not isinstance(part, keras.layers.DepthwiseConv2D)]


@pytest.mark.parametrize("name", LAYERS)
def test_hooks_fire(name):
    layer, x = made(name)
    parts, fired = parts_of(layer), []
    for part in parts:
        for register in (part.register_forward_pre_hook, part.register_forward_hook):
            register(lambda part, *_: fired.append(part.path))
    call(layer, x, training=True)
    assert set(fired) == {part.path for part in parts}
    # Each at its only call; an MLP drops twice, and positions are projected per axis.
    once = [p for p in parts if p.name != "pos_proj" and not isinstance(p, keras.layers.Dropout)]
    assert all(fired.count(part.path) == 2 for part in once)
