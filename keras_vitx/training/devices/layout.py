"""The layouts of a model that is split between devices (JAX)."""

import math
from typing import Any

import keras

# Minimum number of entries of a variable that is sharded; a smaller one is not worth a collective.
SHARDED = 4096

# Columns of one product, rows of the next: the products of a pair need one sum over the
# devices between them (Megatron-LM: Shoeybi et al., 2019, Section 3). Of a fused `qkv`, the
# parts of a head may lie on different devices, between which XLA moves them.
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
    """Return the distribution that splits the models of all families over a mesh.

    It holds for the loop over depth, too, in which each variable has one more axis in front.

    Args:
        mesh: A mesh with the axes `"batch"`, over which batches are split, and `"model"`.
        auto_shard_dataset: As in `keras.distribution.ModelParallel`.
    """
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[f"{COLUMNS}/kernel"] = (None, "model")
    layouts[f"{COLUMNS}/bias"] = ("model",)
    layouts[f"{ROWS}/kernel"] = ("model", None)
    return Split(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=auto_shard_dataset)


class ShardedWeights(keras.distribution.DataParallel):
    """`DataParallel` in which every device keeps a part of each weight and its optimizer states.

    Known as FSDP, or the third stage of ZeRO (Rajbhandari et al., 2020). Weights are gathered
    where a block uses them, in the backward pass again; the loop over depth asks for both, and
    activations stay where their images are.
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
