"""`torch.compile` takes every family as one graph, for any number of images."""

import keras
import numpy as np
import pytest
from devices.zoo import TINY
from harness import BACKEND

if BACKEND != "torch":
    pytest.skip("compiled by PyTorch", allow_module_level=True)

import torch
from torch._dynamo.utils import counters

# An unknown number of images makes the second graph.
BATCHES, GRAPHS = (2, 3, 5, 7), 2
# One block of each kind.
SHALLOW = {
    **{family: {"depth": 1} for family in ("ViT", "DeepViT", "CBViT", "Mixer")},
    "CaiT": {"depth": 1, "class_depth": 1},
    "ConViT": {"depth": 2, "local_depth": 1},
    "RefinedViT": {},
    "PiT": {"depths": (1, 1)},
}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    counters.clear()


# What training compiles has what inference compiles; a few families for the outputs.
@pytest.mark.parametrize(
    ("family", "training"),
    [
        *((name, True) for name in TINY),
        *((name, False) for name in ("ConViT", "RefinedViT")),
    ],
)
def test_one_graph(family, training):
    model = TINY[family](**SHALLOW[family])
    compiled = torch.compile(lambda x: model(x, training=training), fullgraph=True, backend="eager")
    for images in BATCHES:
        x = torch.randn(images, *model.input_shape[1:])
        if training:
            compiled(x).sum().backward()
            assert all(v.value.grad is not None for v in model.trainable_variables)
        else:
            with torch.no_grad():
                found, wanted = (keras.ops.convert_to_numpy(f(x)) for f in (compiled, model))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= GRAPHS
