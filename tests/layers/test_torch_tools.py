"""PyTorch's hooks, on children that a fast path would not call, and its tracers and exporters."""

import keras
import pytest
from cases import LAYERS
from harness import FAMILIES, array, call, close, numbers, randomize
from plain import made

from keras_vitx.keras_internals import sublayers

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's tools")
torch = pytest.importorskip("torch")
needs_keras_3_14 = pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14),
    reason="earlier ones make every size a constant",
)


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


class Inference(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images, training=False)


def exported(model, images):
    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()


@pytest.mark.parametrize(
    ("family", "arguments", "tool"),
    [
        pytest.param("RefinedViT", {"conv_stem": False}, exported, marks=needs_keras_3_14),
        ("RefinedViT", {"conv_stem": False}, torch.jit.trace),
        ("ConViT", {"local_depth": 1}, torch.jit.trace),
    ],
    ids=("export", "trace", "trace ConViT"),
)
def test_traced_for_batches_of_any_size(family, arguments, tool):
    model, images = FAMILIES[family](depth=2, **arguments), numbers((3, 16, 16, 3))
    randomize(model, 0.1)
    model.eval()
    with torch.no_grad():
        expected = array(model(images, training=False))
        run = tool(Inference(model), torch.tensor(images[:2]))
        for count in (2, 3):
            close(array(run(torch.tensor(images[:count]))), expected[:count])
