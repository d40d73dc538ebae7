"""PyTorch's tracers and exporters, with a batch size other than the traced one."""

import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, randomize

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's tools")
if BACKEND == "torch":
    import torch

IMAGES = numbers((3, 16, 16, 3))


def exported(model, images):
    batch = torch.export.Dim("batch", min=2, max=64)
    return torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()


def traced(model, images):
    return torch.jit.trace(model, images)


SMALL = {"depth": 2, "conv_stem": False}
CASES = {
    "export": ("RefinedViT", SMALL, exported),
    "trace": ("RefinedViT", SMALL, traced),
    "trace/ConViT": ("ConViT", {"depth": 2, "local_depth": 1}, traced),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_of_another_size(case):
    family, arguments, tool = CASES[case]
    model = FAMILIES[family](**arguments)
    randomize(model, 0.1)
    model.eval()
    with torch.no_grad():
        expected = array(model(IMAGES, training=False))
        run = tool(Inference(model), torch.tensor(IMAGES[:2]))
        for count in (2, 3):
            close(array(run(torch.tensor(IMAGES[:count]))), expected[:count])


if BACKEND == "torch":

    class Inference(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(images, training=False)
