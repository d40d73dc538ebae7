"""Programs of PyTorch, by torch.export."""

import io
from collections.abc import Sequence
from pathlib import Path

import keras

AXES = ("batch", "height", "width", "channels")


def write(model: keras.Model, names: Sequence[str], path: Path) -> None:
    """Write a `.pt2` file, a `torch.export.ExportedProgram`."""
    import torch

    # In memory first: on a full disk, PyTorch's writer would abort the process.
    buffer = io.BytesIO()
    torch.export.save(program_of(model, names)[0], buffer)
    path.write_bytes(buffer.getbuffer())


def program_of(model: keras.Model, names: Sequence[str]):
    """Return a `torch.export.ExportedProgram` and the images with which it was traced."""
    import torch

    (spec,) = model.inputs
    # PyTorch would assume that a dimension of 1 is constant, and that equal sides stay equal.
    shape = [side or (2, 80, 96)[axis] for axis, side in enumerate(spec.shape)]
    with keras.device("cpu"):
        images = keras.ops.zeros(shape, spec.dtype)
    dynamic = {
        axis: torch.export.Dim(AXES[axis], min=2 if axis else 1)
        for axis, side in enumerate(spec.shape)
        if side is None
    }
    old = torch.fx.config.do_not_emit_stack_traces
    # They hold paths of this machine, and take a quarter of the time.
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        with torch.no_grad(), keras.device("cpu"):
            program = torch.export.export(
                _module(model, names).eval(),
                (images,),
                dynamic_shapes={"images": dynamic},
                strict=False,
            )
    finally:
        torch.fx.config.do_not_emit_stack_traces = old
    return program, images


def _module(model, names):
    """Return a module with named outputs that stores each weight once."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for index, variable in enumerate(model.variables):
                self.register_buffer(f"weight_{index}", variable.value.detach().cpu())

        def forward(self, images):
            # The model is not a submodule: Keras lists a parameter once per enclosing layer, each
            # of which would be a copy in the file.
            stored = zip(model.variables, self.buffers(), strict=True)
            with _without_identity_casts(), keras.StatelessScope(stored):
                outputs = model(images, training=False)
            return dict(zip(names, keras.tree.flatten(outputs), strict=True))

    return Module()


def _without_identity_casts():
    """Return a mode that skips casts to the same dtype: 3,484 of 5,084 nodes of CaiT_XXS24."""
    import torch

    class WithoutIdentityCasts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            options = options or {}
            if function is torch.Tensor.to:
                tensor, *targets = arguments
                current = (tensor.dtype, tensor.device, tensor.device.type)
                if all(target in current for target in (*targets, *options.values())):
                    return tensor
            return function(*arguments, **options)

    return WithoutIdentityCasts()
