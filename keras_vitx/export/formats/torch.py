"""Programs of PyTorch, by torch.export."""

import contextlib
import io
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export.formats.base import Format, Graph, halves, starts_with


def write(graph: Graph, path: Path) -> None:
    """Write a `.pt2` file, a `torch.export.ExportedProgram`."""
    import torch

    # In memory first: on a full disk, PyTorch's own writer would abort the process.
    buffer = io.BytesIO()
    torch.export.save(program_of(graph)[0], buffer)
    path.write_bytes(buffer.getbuffer())


def program_of(graph: Graph):
    """Return a `torch.export.ExportedProgram` and the images that it was traced with."""
    import torch

    (spec,) = graph.model.inputs
    count, *sides = spec.shape
    # PyTorch would take a dimension of 1 for a constant, and equal sides for one dimension.
    shape = [count or 2, *(side or 64 + 16 * axis for axis, side in enumerate(sides))]
    dtype = getattr(torch, keras.backend.standardize_dtype(spec.dtype))
    images = torch.tensor(np.zeros(shape), dtype=dtype)
    names = ("batch", "height", "width", "channels")
    dynamic = {
        axis: torch.export.Dim(names[axis], min=2 if axis else 1)
        for axis, side in enumerate(spec.shape)
        if side is None
    }
    with torch.no_grad(), _without_stack_traces(torch.fx.config):
        program = torch.export.export(
            _served(graph).eval(), (images,), dynamic_shapes={"images": dynamic}, strict=False
        )
    return program, images


@contextlib.contextmanager
def _without_stack_traces(config):
    """Leave out stack traces, which hold paths of this machine and take a quarter of the time."""
    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def _only_real_casts():
    """Return a mode without casts to a tensor's own dtype, most of the nodes of Keras's graphs."""
    import torch

    class OnlyRealCasts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            options = options or {}
            if function is torch.Tensor.to:
                tensor, *wanted = arguments
                own = (tensor.dtype, tensor.device, tensor.device.type)
                if all(each in own for each in (*wanted, *options.values())):
                    return tensor
            return function(*arguments, **options)

    return OnlyRealCasts()


def _served(graph: Graph):
    """Return a module that stores each weight once, maybe in half precision, and names outputs."""
    import torch

    dtype = graph.compute_dtype or graph.precision
    in_half = halves(graph.model, dtype)
    variables = graph.model.variables

    class Served(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for index, variable in enumerate(variables):
                value = variable.value.detach()
                if id(variable) in in_half:
                    value = value.to(getattr(torch, dtype))
                self.register_buffer(f"weight_{index}", value)

        def forward(self, images):
            # The model is not a submodule: Keras lists a parameter once per enclosing layer, and
            # the file would hold a copy of each.
            with (
                _only_real_casts(),
                keras.StatelessScope(
                    (variable, getattr(self, f"weight_{index}").to(variable.value.dtype))
                    for index, variable in enumerate(variables)
                ),
            ):
                return graph.named(graph.model(images, training=False))

    return Served()


FORMAT = Format(
    name="torch",
    title="a program of torch.export",
    suffix=".pt2",
    backend="torch",
    needs=("torch",),
    extra="torch",
    write=write,
    is_one=starts_with(b"PK"),
    risk="it is unpickled, which runs any code in it",
    half_products=True,
)
