"""The loop over depth, which runs a list of layers.

Under JAX on a CPU, a training pass runs consecutive blocks that are the same program, up to the
values of their variables, as one `keras.ops.scan` over the stacked variables: otherwise XLA's
fusion evaluates the residual chain of all later blocks again for every weight. On a GPU or TPU, the
buffers of a scan cost more bytes than it saves.
"""

import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import autocast, sublayers
from keras_vitx.layers import ops
from keras_vitx.layers.block import Block
from keras_vitx.layers.recording import Tensor

Unit = Sequence[keras.layers.Layer]


def run(
    layers: Sequence[keras.layers.Layer],
    x: Tensor | list[Tensor],
    training: bool,
    scan: bool | None,
    remat: bool | str,
    dtype: str,
    compiled: bool = False,
) -> tuple[Any, list]:
    """Run `layers`, those of a functional model, in order on `x`; return the output and losses.

    The losses are those added in a stateless scope, which the caller adds to the model. `scan` and
    `remat` are as in `Chain` and apply in training only. `dtype` is that in which the model
    computes. With `compiled` each kind of block is a graph, unless `remat` (PyTorch).
    """
    loops = training and ops.use_scan(scan)
    if _sharding() is not None:
        # The gathered weights are not saved.
        remat = remat or "products"
    is_pure = training and remat
    if not loops and not is_pure:
        # As in a layer of the model that calls them.
        with autocast(dtype):
            for layer in layers:
                call = _call_graph if compiled and isinstance(layer, Block) else ops.call
                x = call(layer, x, training, dtype)
        return x, []
    with autocast(None):
        programs = _programs(layers, ops.shape(keras.tree.flatten(x)[0])[0]) if loops else []
        losses: list[Any] = []
        start = 0
        while start < len(layers):
            units = _first_run(layers[start:], programs[start:]) if loops else [[layers[start]]]
            if len(units) == 1 and not is_pure:
                x = ops.call(layers[start], x, training)
            else:
                x, states, added = (_once if len(units) == 1 else _scanned)(units, x, remat)
                for unit, values in zip(units, states, strict=True):
                    for variable, value in zip(_variables(unit)[1], values, strict=True):
                        variable.assign(value)
                losses += added
            start += sum(map(len, units))
    return x, losses


def _call_graph(layer: Block, x: Tensor | list[Tensor], training: bool, dtype: str) -> Any:
    """Call a block as the graph of its kind, which takes the numbers in which blocks differ."""
    attributes = _numbers([layer])
    with ops.scalars_on_device():
        numbers = [ops.convert_to_tensor(getattr(*one), "float32") for one in attributes]
    with _set(attributes, numbers):
        return ops.compiled_call(layer, x, training, dtype)


def _first_run(layers: Sequence[keras.layers.Layer], programs: Sequence[int]) -> list[Unit]:
    """Return the run at the start of the list: equal repeat units of one or two layers.

    Two where one block computes maps and the next reuses them. A layer whose output and input
    differ in shape, such as a class token, is a run of its own.
    """
    units = [layers[:1]]
    for period in (1, 2):
        count = 1
        while programs[count * period : (count + 1) * period] == programs[:period]:
            count += 1
        if count > 1 and count * period > len(units) * len(units[0]):
            units = [layers[i * period : (i + 1) * period] for i in range(count)]
    received, returned = (
        [(tensor.shape, tensor.dtype) for tensor in keras.tree.flatten(tensors)]
        for tensors in (units[0][0].input, units[0][-1].output)
    )
    return units if received == returned else [layers[:1]]


def _scanned(
    units: list[Unit], x: Tensor | list[Tensor], remat: bool | str
) -> tuple[Any, list, list]:
    """Run identical units as one loop over their stacked variables.

    It saves no more than products: it would copy all else into buffers.
    """
    values = [ops.stack(column) for column in zip(*map(_values, units), strict=True)]
    attributes, numbers = _varying_numbers(units)

    def step(x, slices):
        values, numbers = slices
        with _set(attributes, numbers):
            y, states, losses = _pure(units[0], values, x)
        return y, (states, losses)

    step = ops.remat(step, remat or "products", in_loop=True)
    x, (states, losses) = ops.scan(step, x, (values, numbers))
    states = [[state[index] for state in states] for index in range(len(units))]
    return x, states, [ops.sum(loss) for loss in losses]


def _once(units: list[Unit], x: Tensor | list[Tensor], remat: bool | str) -> tuple[Any, list, list]:
    """Run one unit as a function of its input and its variables."""
    # Blocks may take a pair of tensors; `keras.remat` takes them as separate arguments.
    count = len(keras.tree.flatten(x))

    def pure(*tensors):
        return _pure(units[0], tensors[count:], keras.tree.pack_sequence_as(x, tensors[:count]))

    function = ops.remat(pure, remat) if remat else pure
    y, states, losses = function(*keras.tree.flatten(x), *_values(units[0]))
    return y, [states], losses


def _pure(unit: Unit, values: Sequence[Any], x: Tensor | list[Tensor]) -> tuple[Any, list, list]:
    """Call `unit` as a pure function in training; return the output, new states and losses."""
    if sharding := _sharding():
        values = [sharding.gather_weight(value) for value in values]
        x = keras.tree.map_structure(sharding.by_image, x)
    trained, states = _variables(unit)
    with keras.StatelessScope(
        state_mapping=list(zip(trained + states, values, strict=True)), collect_losses=True
    ) as scope:
        for layer in unit:
            x = ops.call(layer, x, True)
        return x, [scope.get_current_value(state) for state in states], list(scope.losses)


def _variables(unit: Unit) -> tuple[list, list]:
    """Return the trainable variables of a unit, and all others, those of its metrics included."""
    trained = [variable for layer in unit for variable in layer.trainable_variables]
    others = ((*layer.non_trainable_variables, *layer.metrics_variables) for layer in unit)
    return trained, [variable for each in others for variable in each]


def _values(unit: Unit) -> list:
    trained, states = _variables(unit)
    # States are copied, since under PyTorch they are updated in place before the
    # backward pass reads them.
    return [*map(ops.convert_to_tensor, trained), *map(ops.copy, states)]


def _sharding():
    """Return the distribution if weights are sharded (`use_devices(..., shard_weights=True)`)."""
    distribution = keras.distribution.distribution()
    return distribution if hasattr(distribution, "gather_weight") else None


def _varying_numbers(units: list[Unit]) -> tuple[list, list]:
    """Return the attributes in which the units of a run differ, and their values per unit."""
    attributes, numbers = [], []
    for same in zip(*map(_numbers, units), strict=True):
        column = [getattr(layer, name) for layer, name in same]
        if len(set(column)) > 1:
            attributes.append(same[0])
            numbers.append(ops.convert_to_tensor(column, "float32"))
    return attributes, numbers


def _numbers(unit: Unit) -> list[tuple[keras.layers.Layer, str]]:
    """Return the layers and attributes of the numbers that may differ; a 0 disables an operation."""
    layers = (one for layer in unit for one in sublayers(layer))
    pairs = ((layer, name) for layer in layers for name in getattr(layer, "varying", ()))
    return [(layer, name) for layer, name in pairs if getattr(layer, name)]


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


def _programs(layers: Sequence[keras.layers.Layer], batch: int) -> list[int]:
    """Return a number per layer, equal for two layers only if they are the same program.

    A description of a layer (class, arguments) would miss closures, arrays, attributes and methods
    that are not arguments: the layers are traced. Layers that share a variable are not equal: a
    loop over stacked copies would update each copy.
    """
    owners = collections.Counter(id(one) for layer in layers for one in layer.variables)
    signatures = [
        _signature(layer) if all(owners[id(one)] == 1 for one in layer.variables) else index
        for index, layer in enumerate(layers)
    ]
    counts = collections.Counter(signatures)
    known: list[Any] = []  # Signature and program.
    numbers = []
    for layer, signature in zip(layers, signatures, strict=True):
        program = (signature, counts[signature] > 1 and _program(layer, batch))
        if program not in known:
            known.append(program)
        numbers.append(known.index(program))
    return numbers


def _signature(layer: keras.layers.Layer) -> tuple:
    """Return what two layers of one loop have in common before they are traced."""
    tensors = (keras.tree.flatten(each) for each in (layer.input, layer.output))
    return type(layer), *(
        tuple((tuple(one.shape), keras.backend.standardize_dtype(one.dtype)) for one in group)
        for group in (*tensors, *_variables([layer]))
    )


def _program(layer: keras.layers.Layer, batch: int) -> Any:
    """Return the program of a layer in training, as a function of all that a loop may vary."""
    attributes, (trained, states) = _numbers([layer]), _variables([layer])

    def function(values, numbers, x):
        with _set(attributes, numbers):
            return _pure([layer], values, x)

    def of_batch(tensor):
        return keras.KerasTensor((batch, *tensor.shape[1:]), tensor.dtype)

    x = keras.tree.map_structure(of_batch, layer.input)
    numbers = [keras.KerasTensor((), "float32") for _ in attributes]
    return ops.program(function, trained + states, numbers, x)
