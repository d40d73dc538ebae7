"""Programs of PyTorch, by torch.export."""

import io
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export.formats.base import Format, Graph, halves, starts_with


def write(graph: Graph, path: Path) -> None:
    """Write a `.pt2` file, a `torch.export.ExportedProgram`."""
    import torch

    model = graph.model
    count, *sides = model.inputs[0].shape
    # PyTorch would take a dimension of 1 in the example for a constant.
    shape = [count or 2, *(side or 64 for side in sides)]
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    images = torch.tensor(np.zeros(shape), dtype=getattr(torch, dtype))
    dynamic = {}
    if count is None:
        dynamic[0] = torch.export.Dim("batch", min=1)
    for axis, side in enumerate(sides[:2], start=1):
        if side is None:
            dynamic[axis] = torch.export.Dim(("height", "width")[axis - 1], min=2)
    with torch.no_grad():
        program = torch.export.export(
            _served(graph).eval(), (images,), dynamic_shapes={"images": dynamic}, strict=False
        )
    # In memory first: on a full disk, PyTorch's own writer would abort the process.
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def _served(graph):
    """Return a module that stores each weight once and names its outputs."""
    import torch

    in_half = halves(graph.model, graph.precision)
    variables = graph.model.variables

    class Served(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for index, variable in enumerate(variables):
                value = in_half.get(id(variable))
                if value is None:
                    value = variable.value.detach()
                else:
                    # PyTorch does not know the bfloat16 of NumPy.
                    value = torch.tensor(value.astype("float32"))
                    value = value.to(getattr(torch, graph.precision))
                self.register_buffer(f"weight_{index}", value)

        def forward(self, images):
            # The model is not a submodule: Keras lists a parameter once per enclosing layer, and
            # the file would hold a copy of each.
            weights = [
                (variable, getattr(self, f"weight_{index}").to(variable.value.dtype))
                for index, variable in enumerate(variables)
            ]
            with keras.StatelessScope(weights):
                return graph.named(graph.model(images, training=False))

    return Served()


FORMAT = Format(
    name="torch",
    title="A program of torch.export",
    suffix=".pt2",
    backend="torch",
    needs=("torch",),
    extra="torch",
    write=write,
    is_one=starts_with(b"PK"),
)
