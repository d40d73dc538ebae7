"""The loop over depth, which runs a list of layers.

Under JAX, a training pass runs consecutive blocks that differ only in the values of their variables
as one `keras.ops.scan` over the stacked variables. The step compiles and, on a CPU, runs several
times faster: otherwise XLA's fusion re-evaluates the residual chain of all later blocks for every
weight.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import ops as layer_ops
from keras_vitx.layers.base import arguments

Layers = Sequence[keras.layers.Layer]


def run(
    layers: Layers, x: Any, training: bool, scan: bool, remat: bool, dtype: str | None = None
) -> tuple[Any, list]:
    """Run `layers`, those of a functional model, in order on `x`; return the output and losses.

    The losses are those added in a stateless scope, which the caller adds to the model. `scan` runs
    identical blocks as one loop where that gains (JAX), and `remat` recomputes all but the inputs
    of layers; both apply in training only. Layers that compute in `dtype` are called without checks
    where that is faster (PyTorch).
    """
    loops = training and scan and layer_ops.gains_from_scan()
    is_pure = training and (remat or _sharding() is not None)
    signatures = [_signature(layer) for layer in layers] if loops else []
    losses: list[Any] = []
    start = 0
    while start < len(layers):
        units = _first_run(layers[start:], signatures[start:]) if loops else [[layers[start]]]
        if len(units) == 1 and not is_pure:
            x = layer_ops.call(layers[start], x, training, None if loops else dtype)
        else:
            x, states, added = (_once if len(units) == 1 else _scanned)(units, x, remat)
            for unit, values in zip(units, states, strict=True):
                for variable, value in zip(_variables(unit)[1], values, strict=True):
                    variable.assign(value)
            losses += added
        start += sum(map(len, units))
    return x, losses


def _first_run(layers: Layers, signatures: Sequence[str]) -> list[Layers]:
    """Return the run at the start of the list: identical repeat units of one or two layers.

    Two where one block computes maps and the next reuses them. A layer whose output and input
    differ in shape, such as a class token, is a run of its own.
    """
    units = [layers[:1]]
    for period in (1, 2):
        count = 1
        while signatures[count * period : (count + 1) * period] == signatures[:period]:
            count += 1
        if count > 1 and count * period > len(units) * len(units[0]):
            units = [layers[i * period : (i + 1) * period] for i in range(count)]
    received, returned = (
        [(tensor.shape, tensor.dtype) for tensor in keras.tree.flatten(tensors)]
        for tensors in (units[0][0].input, units[0][-1].output)
    )
    return units if received == returned else [layers[:1]]


def _scanned(units: list[Layers], x: Any, remat: bool) -> tuple[Any, list, list]:
    """Run identical units as one loop over their stacked variables."""
    values = [ops.stack(column) for column in zip(*map(_values, units), strict=True)]
    attributes, numbers = _varying_numbers(units)

    def step(x, slices):
        values, numbers = slices
        with _set(attributes, numbers):
            y, states, losses = _pure(units[0], values, x)
        return y, (states, losses)

    step = keras.remat(step) if remat else layer_ops.save_products(step)
    x, (states, losses) = ops.scan(step, x, (values, numbers))
    states = [[state[index] for state in states] for index in range(len(units))]
    return x, states, [ops.sum(loss) for loss in losses]


def _once(units: list[Layers], x: Any, remat: bool) -> tuple[Any, list, list]:
    """Run one unit as a function of its input and its variables."""
    # Blocks may take a pair of tensors; `keras.remat` takes them as separate arguments.
    count = len(keras.tree.flatten(x))

    def pure(*tensors):
        return _pure(units[0], tensors[count:], keras.tree.pack_sequence_as(x, tensors[:count]))

    function = keras.remat(pure) if remat else pure
    y, states, losses = function(*keras.tree.flatten(x), *_values(units[0]))
    return y, [states], losses


def _pure(unit: Layers, values: Sequence[Any], x: Any) -> tuple[Any, list, list]:
    """Call `unit` as a pure function in training; return the output, new states and losses."""
    if sharding := _sharding():
        values = [sharding.gathered(value) for value in values]
        x = keras.tree.map_structure(sharding.by_image, x)
    trained, states = _variables(unit)
    with keras.StatelessScope(
        state_mapping=list(zip(trained + states, values, strict=True)), collect_losses=True
    ) as scope:
        for layer in unit:
            x = layer_ops.call(layer, x, True)
        return x, [scope.get_current_value(state) for state in states], list(scope.losses)


def _variables(unit: Layers) -> tuple[list, list]:
    """Return the trainable and the non-trainable variables of a unit."""
    trained = [variable for layer in unit for variable in layer.trainable_variables]
    return trained, [variable for layer in unit for variable in layer.non_trainable_variables]


def _values(unit: Layers) -> list:
    trained, states = _variables(unit)
    # States are copied, since under PyTorch they are updated in place before the
    # backward pass reads them.
    return [*map(ops.convert_to_tensor, trained), *map(ops.copy, states)]


def _sharding():
    """Return the distribution if weights are sharded (`use_devices(..., shard_weights=True)`)."""
    distribution = keras.distribution.distribution()
    return distribution if hasattr(distribution, "gathered") else None


def _varying_numbers(units: list[Layers]) -> tuple[list, list]:
    """Return the attributes in which the units of a run differ, and their values per unit."""
    attributes, numbers = [], []
    parts = ([part for layer in unit for part in sublayers(layer)] for unit in units)
    for same in zip(*parts, strict=True):
        for name in getattr(same[0], "varying", ()):
            column = [getattr(layer, name) for layer in same]
            if None not in column and len(set(column)) > 1:
                attributes.append((same[0], name))
                numbers.append(ops.convert_to_tensor(column, "float32"))
    return attributes, numbers


@contextlib.contextmanager
def _set(attributes: list, numbers: list) -> Iterator[None]:
    before = [getattr(layer, name) for layer, name in attributes]
    try:
        for (layer, name), number in zip(attributes, numbers, strict=True):
            setattr(layer, name, number)
        yield
    finally:
        for (layer, name), number in zip(attributes, before, strict=True):
            setattr(layer, name, number)


def _signature(layer: keras.layers.Layer) -> str:
    """Return a string that determines what `layer` computes, up to the values of its variables."""
    parts = []
    for part in sublayers(layer):
        # Not `get_config`, which makes Keras import TensorFlow. Of a number in `varying`, it only
        # counts whether it is zero, which disables an operation.
        varying = getattr(part, "varying", ())
        config = {name: getattr(part, name, object()) for name in arguments(type(part))}
        config |= {name: bool(value) for name, value in config.items() if name in varying}
        kind, dtype = type(part).__qualname__, part.dtype_policy.name
        parts.append((kind, dtype, config, getattr(part, "quantization_mode", None)))
    variables = [
        (variable.shape, variable.dtype, variable.trainable)
        for variable in layer.trainable_variables + layer.non_trainable_variables
    ]
    return json.dumps((parts, variables), default=_described)


def _described(value: Any) -> Any:
    if isinstance(value, keras.layers.Layer):
        return type(value).__qualname__
    if isinstance(value, keras.initializers.Initializer):
        return "initializer"
    if isinstance(value, (keras.regularizers.Regularizer, keras.constraints.Constraint)):
        return type(value).__qualname__, value.get_config()
    return repr(value)
