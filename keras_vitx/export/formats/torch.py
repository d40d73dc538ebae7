"""Programs of PyTorch, by torch.export."""

import io
from pathlib import Path

import keras
import numpy as np

from keras_vitx.export.graph import INPUT, Format, Graph, half_arrays, starts_with


def write(graph: Graph, path: Path) -> None:
    """Write a `.pt2` file, a `torch.export.ExportedProgram`."""
    import torch

    # In memory first: on a full disk, PyTorch's writer would abort the process.
    buffer = io.BytesIO()
    torch.export.save(program_of(graph)[0], buffer)
    path.write_bytes(buffer.getbuffer())


def program_of(graph: Graph):
    """Return a `torch.export.ExportedProgram` and the images with which it was traced."""
    import torch

    (spec,) = graph.model.inputs
    count, *sides = spec.shape
    # PyTorch would assume that a dimension of 1 is constant, and that equal sides stay equal.
    shape = [count or 2, *(side or 64 + 16 * axis for axis, side in enumerate(sides))]
    dtype = getattr(torch, keras.backend.standardize_dtype(spec.dtype))
    images = torch.tensor(np.zeros(shape), dtype=dtype)
    names = ("batch", "height", "width", "channels")
    dynamic = {
        axis: torch.export.Dim(names[axis], min=2 if axis else 1)
        for axis, side in enumerate(spec.shape)
        if side is None
    }
    if dynamic and tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14):
        # Earlier ones make every size a constant.
        raise ImportError(
            "Files of PyTorch and ONNX for batches of any size need Keras 3.14 or later. "
            f"Received: Keras {keras.__version__}."
        )
    old = torch.fx.config.do_not_emit_stack_traces
    # They hold paths of this machine, and take a quarter of the time.
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        with torch.no_grad():
            program = torch.export.export(
                _module(graph).eval(), (images,), dynamic_shapes={INPUT: dynamic}, strict=False
            )
    finally:
        torch.fx.config.do_not_emit_stack_traces = old
    return program, images


def _without_identity_casts():
    """Return a mode that skips casts to the same dtype, most of the nodes of Keras's graphs."""
    import torch

    class WithoutIdentityCasts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            options = options or {}
            if function is torch.Tensor.to:
                tensor, *targets = arguments
                current = (tensor.dtype, tensor.device, tensor.device.type)
                if all(each in current for each in (*targets, *options.values())):
                    return tensor
            return function(*arguments, **options)

    return WithoutIdentityCasts()


def _module(graph: Graph):
    """Return a module with named outputs that stores each weight once, maybe in half precision."""
    import torch

    dtype = graph.compute_dtype or graph.precision
    half = half_arrays(graph.model, dtype)
    variables = graph.model.variables

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for index, variable in enumerate(variables):
                value = variable.value.detach()
                if id(variable) in half:
                    value = value.to(getattr(torch, dtype))
                self.register_buffer(f"weight_{index}", value)

        def forward(self, images):
            # The model is not a submodule: Keras lists a parameter once per enclosing layer, each
            # of which would be a copy in the file.
            with (
                _without_identity_casts(),
                keras.StatelessScope(
                    (variable, getattr(self, f"weight_{index}").to(variable.value.dtype))
                    for index, variable in enumerate(variables)
                ),
            ):
                return graph.name_outputs(graph.model(images, training=False))

    return Module()


FORMAT = Format(
    name="torch",
    title="a program of torch.export",
    suffix=".pt2",
    backend="torch",
    needs=("torch",),
    extra="torch",
    write=write,
    matches=starts_with(b"PK"),
    risk="it is unpickled, which runs any code in it",
    half_products=True,
)
