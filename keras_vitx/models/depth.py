"""The loop over depth, which runs a list of layers.

Where a training pass recomputes, under JAX on a CPU always, it runs each layer as a pure function.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import asks_for_shapes, autocast, sublayers
from keras_vitx.layers import ops
from keras_vitx.layers.block import Block
from keras_vitx.layers.recording import Tensor
from keras_vitx.layers.regularization import DropPath


def run(
    layers: Sequence[keras.layers.Layer],
    x: Tensor | list[Tensor],
    training: bool,
    remat: bool | str,
    dtype: str,
    compiled: bool = False,
) -> tuple[Any, list]:
    """Run `layers`, those of a functional model, in order on `x`; return the output and losses.

    The losses are those added in a stateless scope, which the caller adds to the model. `remat` is
    as in `Chain` and applies in training only. `dtype` is that in which the model computes. With
    `compiled` each kind of block is a graph, unless `remat` (PyTorch).
    """
    if _sharding() is not None:
        # The gathered weights are not saved.
        remat = remat or "products"
    if asks_for_shapes():
        # Without tracing blocks, which would take seconds.
        layers = [one for one in layers if not (isinstance(one, Block) and _keeps_shape(one))]
    of_blocks = training and ops.least_remat(remat, keras.tree.flatten(x)[0])
    if not of_blocks:
        # As in a layer of the model that calls them.
        with autocast(dtype):
            for layer in layers:
                call = _call_graph if compiled and isinstance(layer, Block) else ops.call
                x = call(layer, x, training, dtype)
        return x, []
    losses: list[Any] = []
    with autocast(None), _drawn(layers, keras.tree.flatten(x)[0]):
        for layer in layers:
            is_block = _keeps_shape(layer)
            if not (remat or is_block):
                x = ops.call(layer, x, training)
                continue
            x, states, added = _call_pure(layer, x, of_blocks, is_block)
            for variable, value in zip(_variables(layer)[1], states, strict=True):
                variable.assign(value)
            losses += added
    return x, losses


def _drawn(layers: Sequence[keras.layers.Layer], x: Tensor) -> contextlib.AbstractContextManager:
    """Return a context in which layers of stochastic depth take masks that were drawn at once."""
    parts = [part for layer in layers for part in sublayers(layer) if isinstance(part, DropPath)]
    # A layer that is there twice draws twice.
    parts = [part for part in parts if part.seed_generator and parts.count(part) == 1]
    rates = [part.rate for part in parts]
    masks = ops.draw_masks(rates, [part.seed_generator for part in parts], x.shape[0])
    return _set([(part, "mask") for part in parts], masks)


def _keeps_shape(layer: keras.layers.Layer) -> bool:
    """Return whether the output has the shapes and dtypes of the input, as a block's."""
    received, returned = (
        [(tensor.shape, tensor.dtype) for tensor in keras.tree.flatten(tensors)]
        for tensors in (layer.input, layer.output)
    )
    return received == returned


def _call_graph(layer: Block, x: Tensor | list[Tensor], training: bool, dtype: str) -> Any:
    """Call a block as the graph of its kind, which takes the numbers in which blocks differ."""
    attributes = _numbers(layer)
    with ops.scalars_on_device():
        numbers = [ops.convert_to_tensor(getattr(*one), "float32") for one in attributes]
    with _set(attributes, numbers):
        return ops.compiled_call(layer, x, training, dtype)


def _call_pure(
    layer: keras.layers.Layer, x: Tensor | list[Tensor], remat: bool | str, is_block: bool
) -> tuple[Any, list, list]:
    """Call `layer` in training, recomputed; return the output, new states and losses."""
    parts = [part for part in sublayers(layer) if isinstance(part, DropPath)]
    parts = [part for part in parts if part.mask is not None]
    attributes, masks = [(part, "mask") for part in parts], [part.mask for part in parts]
    # Blocks may take a pair of tensors; `keras.remat` takes them as separate arguments.
    inputs = keras.tree.flatten(x)
    trained, states = _variables(layer)
    # States are copied, since under PyTorch they are updated in place before the
    # backward pass reads them.
    values = [*map(ops.convert_to_tensor, trained), *map(ops.copy, states)]

    def pure(*tensors):
        masks_, inputs_, values_ = _split(tensors, len(masks), len(inputs))
        with _set(attributes, masks_):
            return _pure(layer, values_, keras.tree.pack_sequence_as(x, inputs_))

    return ops.remat(pure, remat, is_block)(*masks, *inputs, *values)


def _split(items: Sequence[Any], *counts: int) -> Iterator[Sequence[Any]]:
    for count in counts:
        yield items[:count]
        items = items[count:]
    yield items


def _pure(
    layer: keras.layers.Layer, values: Sequence[Any], x: Tensor | list[Tensor]
) -> tuple[Any, list, list]:
    """Call `layer` as a pure function of its input and its variables."""
    if sharding := _sharding():
        values = [sharding.gather_weight(value) for value in values]
        x = keras.tree.map_structure(sharding.by_image, x)
    trained, states = _variables(layer)
    with keras.StatelessScope(
        state_mapping=list(zip(trained + states, values, strict=True)), collect_losses=True
    ) as scope:
        x = ops.call(layer, x, True)
        return x, [scope.get_current_value(state) for state in states], list(scope.losses)


def _variables(layer: keras.layers.Layer) -> tuple[list, list]:
    """Return the trainable variables, and all others, those of metrics included."""
    return layer.trainable_variables, layer.non_trainable_variables + layer.metrics_variables


def _sharding():
    """Return the distribution if weights are sharded (`use_devices(..., shard_weights=True)`)."""
    distribution = keras.distribution.distribution()
    # Its class is one of `training`, which imports models.
    return distribution if hasattr(distribution, "gather_weight") else None


def _numbers(layer: keras.layers.Layer) -> list[tuple[keras.layers.Layer, str]]:
    """Return the layers and attributes of the numbers that may differ; a 0 disables an operation."""
    pairs = ((one, name) for one in sublayers(layer) for name in getattr(one, "varying", ()))
    return [(one, name) for one, name in pairs if getattr(one, name)]


@contextlib.contextmanager
def _set(attributes: list, numbers: Sequence[Any]) -> Iterator[None]:
    # While a block is traced, numbers such as its rate of stochastic depth are tensors. Layers at
    # any depth read them: arguments would pass through all others, variables be in every file.
    before = [getattr(layer, name) for layer, name in attributes]
    try:
        for (layer, name), number in zip(attributes, numbers, strict=True):
            setattr(layer, name, number)
        yield
    finally:
        for (layer, name), number in zip(attributes, before, strict=True):
            setattr(layer, name, number)
