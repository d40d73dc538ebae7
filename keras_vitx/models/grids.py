"""The grid of patches, and a network for images of another size with the same weights."""

from typing import Any

import keras
from keras import ops

from keras_vitx.weights.positions import resample

Grid = tuple[int, int]


def grid_after(layer: keras.layers.Layer, grid: Grid | None) -> Grid | None:
    """Return the rows and columns of the patches that `layer` returns.

    Args:
        layer: A layer. Patch embeddings and token downsampling define a new grid.
        grid: The grid before it; None if there is none.
    """
    return getattr(layer, "new_grid", getattr(layer, "grid", grid))


def at_size(model: keras.Model, size: tuple[int, int]) -> keras.Model:
    """Return a copy of a `Chain` for images of another height and width.

    Position embeddings are resampled, as when a checkpoint is loaded at another size; all
    other weights are the same. The result is not compiled.

    Args:
        model: A `Chain`.
        size: Height and width in pixels.

    Raises:
        ValueError: if the network does not fit that size, or has weights that depend on it
            (Mixer's).
    """
    config = model.get_config()
    x = keras.Input((*size, model.input_shape[-1]))
    grids: tuple[Grid | None, Grid | None] = (None, None)
    layers = []
    for step, described in zip(model.steps, config["layers"], strict=True):
        layers.append(_with_grid(described, *grids))
        layer = keras.saving.deserialize_keras_object(layers[-1])
        x = layer(x)
        grids = grid_after(step, grids[0]), grid_after(layer, grids[1])
    shape = (*size, model.input_shape[-1])
    resized = type(model).from_config({**config, "layers": layers, "input_shape": shape})
    for old, new in zip(model.steps, resized.steps, strict=True):
        for before, after in zip(old.weights, new.weights, strict=True):
            after.assign(_fitted(before, after.shape, old, new))
    return resized


def _with_grid(described: Any, old: Grid | None, new: Grid | None) -> Any:
    """Return a serialized layer with the grid `new` wherever it has `old`."""
    if isinstance(described, (list, tuple)):
        return [_with_grid(each, old, new) for each in described]
    if not isinstance(described, dict):
        return described
    return {
        key: new
        if key == "grid" and isinstance(value, (list, tuple)) and tuple(value) == old
        else _with_grid(value, old, new)
        for key, value in described.items()
    }


def _fitted(variable: keras.Variable, shape: tuple, old: Any, new: Any) -> Any:
    values = ops.convert_to_numpy(variable)
    if values.shape == tuple(shape):
        return values
    if variable.name != "embeddings" or not hasattr(old, "num_prefix_tokens"):
        raise ValueError(
            f"`size` can't be changed: the weight {variable.path!r} depends on it. "
            f"Received a model for {values.shape}, and a size for {tuple(shape)}."
        )
    return resample(values, old.grid, new.grid, old.num_prefix_tokens)
