"""Conversion of functional Keras models, such as features cut from a `Chain`, to a `Chain`."""

from typing import Any

import keras

from keras_vitx.keras_internals import node_of
from keras_vitx.models.chain import Chain


def as_chain(model: keras.Model, like: Chain | None = None) -> keras.Model:
    """Return `model` as a `Chain`, which trains as one loop over depth.

    A model cut from a `Chain`, such as `keras.Model(base.input, Dense(5)(base.output))` or
    `keras.Model(base.input, base.get_layer("blocks_7").output)`, and the result of
    `keras.models.clone_model`, run their layers one by one. Under JAX that compiles and
    trains more slowly. The result has the same layers, and therefore the same
    weights; it is not compiled.

    Args:
        model: A functional model with one input that begins with a line of layers, in which
            each takes the output of the previous one.
        like: The `Chain` that it was cut from. The result takes over its family,
            preprocessing, `scan` and `remat`, and, if it has the same head, its class names.

    Returns:
        A `Chain` if the whole model is a line of layers. If it branches or ends in
        operations that are not layers, a `keras.Model` whose first layer is a `Chain`.

    Raises:
        ValueError: if `model` has several inputs or does not begin with a line of layers.
    """
    if isinstance(model, Chain):
        return model
    if not getattr(model, "inputs", None) or len(model.inputs) != 1:
        raise ValueError(
            "`model` must be a functional model of one input, such as "
            f"keras.Model(base.input, outputs). Received: {type(model).__name__} {model.name!r}."
        )
    line, end = _line(model)
    is_whole = _same(end, model.outputs)
    if not line:
        raise ValueError(
            "`model` must begin with a line of layers, in which each takes the output of the one "
            f"before. Received: {model.name!r}, which begins with something else."
        )
    steps = _inlined(line)
    facts = {}
    if like is not None:
        facts = {name: getattr(like, name) for name in ("family", "preprocessing", "scan", "remat")}
        if is_whole and steps[-1] is like.steps[-1]:
            facts["class_names"] = like.class_names
    name = model.name if is_whole else f"{model.name}_chain"
    chain = Chain(steps, model.input_shape[1:], name=name, **facts)
    if is_whole:
        return chain
    images = keras.Input(model.input_shape[1:])
    known = dict(zip(map(id, end), keras.tree.flatten(chain(images)), strict=True))
    outputs = [_repeated(output, known) for output in model.outputs]
    return keras.Model(images, keras.tree.pack_sequence_as(model.output, outputs), name=model.name)


def _repeated(tensor: keras.KerasTensor, known: dict[int, keras.KerasTensor]) -> keras.KerasTensor:
    """Recompute `tensor` with the same operations from the tensors in `known`."""
    if id(tensor) not in known:
        node = node_of(tensor)
        inputs = {id(one): _repeated(one, known) for one in node.input_tensors}
        args, kwargs = node.arguments.fill_in(inputs)
        made = keras.tree.flatten(node.operation(*args, **kwargs))
        known.update(zip(map(id, node.outputs), made, strict=True))
    return known[id(tensor)]


def _line(model: keras.Model) -> tuple[list[keras.layers.Layer], list]:
    """Return the line of layers that `model` begins with, and the outputs of the last one."""
    users: dict[int, list] = {}
    for node in _nodes(model.outputs):
        for tensor in node.input_tensors:
            users.setdefault(id(tensor), []).append(node)
    line: list[keras.layers.Layer] = []
    tensors = list(model.inputs)
    while not any(tensor is output for tensor in tensors for output in model.outputs):
        following = {id(node): node for tensor in tensors for node in users.get(id(tensor), ())}
        if len(following) != 1:
            break
        (node,) = following.values()
        if not _is_plain(node, tensors) or any(node.operation is layer for layer in line):
            break
        line.append(node.operation)
        tensors = list(node.outputs)
    return line, tensors


def _nodes(outputs: list) -> list:
    """Return the nodes of all calls that `outputs` depend on."""
    found: dict[int, Any] = {}
    waiting = list(outputs)
    while waiting:
        node = node_of(waiting.pop())
        if id(node) not in found:
            found[id(node)] = node
            waiting += node.input_tensors
    return list(found.values())


def _is_plain(node: Any, tensors: list) -> bool:
    """Return whether a node is the call of a layer on `tensors` and nothing else."""
    # Keras records the default `training=False`, and replaces it when the model runs.
    given = [value for value in node.arguments.kwargs.values() if value not in (None, False)]
    return (
        isinstance(node.operation, keras.layers.Layer)
        and len(node.arguments.args) == 1
        and not given
        and _same(node.input_tensors, tensors)
    )


def _same(tensors: list, others: list) -> bool:
    return list(map(id, tensors)) == list(map(id, others))


def _inlined(line: list[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Return the layers, with every nested `Chain` replaced by its steps."""
    steps: list[keras.layers.Layer] = []
    for layer in line:
        steps += layer.steps if isinstance(layer, Chain) else [layer]
    return steps
