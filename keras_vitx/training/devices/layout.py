"""How a model is split between devices (JAX)."""

import math
from typing import Any

import keras

# Minimum size of a sharded variable; a smaller one is not worth a collective.
SHARDED = 4096

# Columns of one product, rows of the next, so that a pair needs one sum over the devices
# (Megatron-LM: Shoeybi et al., 2019, Section 3). XLA moves the parts of a fused `qkv`.
COLUMNS = r"(?:.*/)?(?:q|k|v|qk|qkv|fc1)"
ROWS = r"(?:.*/)?(?:attn/proj|fc2)"


class Split(keras.distribution.ModelParallel):
    """`ModelParallel` in which a variable that cannot be split evenly is copied instead."""

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        mesh, shape = self.device_mesh, variable.shape
        sizes = {None: 1, **dict(zip(mesh.axis_names, mesh.shape, strict=True))}
        # Optimizer variables of another shape (the step, a scalar) may carry the path.
        fits = len(layout.axes) == len(shape) and all(
            size % sizes[axis] == 0 for axis, size in zip(layout.axes, shape, strict=True)
        )
        return layout if fits else keras.distribution.TensorLayout([None] * len(shape), mesh)


def layout_for(
    mesh: keras.distribution.DeviceMesh, auto_shard_dataset: bool = True
) -> keras.distribution.ModelParallel:
    """Return the distribution that splits any family's model over the axes "batch" and "model".

    It holds for the loop over depth, too, in which each variable has one more axis in front.
    """
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[f"{COLUMNS}/kernel"] = (None, "model")
    layouts[f"{COLUMNS}/bias"] = ("model",)
    layouts[f"{ROWS}/kernel"] = ("model", None)
    return Split(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=auto_shard_dataset)


class ShardedWeights(keras.distribution.DataParallel):
    """`DataParallel` that splits each weight and its optimizer states over the devices (FSDP).

    This is the third stage of ZeRO (Rajbhandari et al., 2020): weights are gathered for each block,
    and again in the backward pass, while activations stay where their images are.
    """

    def get_variable_layout(self, variable):
        """Split the largest axis that the devices divide; copy small variables."""
        count = self.device_mesh.devices.size
        axes: list[str | None] = [None] * len(variable.shape)
        fits = [i for i, size in enumerate(variable.shape) if size % count == 0]
        if fits and math.prod(variable.shape) >= SHARDED:
            axes[max(fits, key=lambda i: variable.shape[i])] = self.batch_dim_name
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def gathered(self, weight: Any) -> Any:
        """Return a weight, whole on every device."""
        layout = keras.distribution.TensorLayout([None] * len(weight.shape), self.device_mesh)
        return keras.distribution.distribute_tensor(weight, layout)

    def by_image(self, x: Any) -> Any:
        """Return activations `(batch, ...)`, each on the device of its image."""
        return keras.distribution.distribute_tensor(x, self.get_data_layout(x.shape))
