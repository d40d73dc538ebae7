"""Conversion of functional Keras models, such as features cut from a `Chain`, to a `Chain`."""

import keras

from keras_vitx.keras_internals import nodes
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
            `scan` and `remat`, and, if it has the same head, its class names.

    Returns:
        A `Chain` if the whole model is a line of layers. If it branches or ends in
        operations that are not layers, a `keras.Model` of a `Chain` and a model of the rest.

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
    # Of a `Sequential`, too.
    functional = keras.Model(model.inputs, model.outputs)
    line, end = _line(functional)
    if not line:
        raise ValueError(
            "`model` must begin with a line of layers, in which each takes the output of the one "
            f"before. Received: {model.name!r}, which begins with something else."
        )
    layers = [
        step for layer in line for step in (layer.layers if isinstance(layer, Chain) else [layer])
    ]
    is_whole = _ids(end) == _ids(functional.outputs)
    arguments = {}
    if like is not None:
        names = ("family", "scan", "remat")
        arguments = {name: getattr(like, name) for name in names}
        if is_whole and layers[-1] is like.layers[-1]:
            arguments["class_names"] = like.class_names
    name = model.name if is_whole else f"{model.name}_chain"
    stated = getattr(model, "preprocessing", None)
    images = {"dtype": model.inputs[0].dtype, "name": model.inputs[0].name}
    arguments |= {"preprocessing": stated, "images": images}
    chain = Chain(layers, model.input_shape[1:], name=name, **arguments)
    if is_whole:
        return chain
    images = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    end = keras.tree.pack_sequence_as(chain.output, end)
    rest = keras.Model(end, keras.tree.pack_sequence_as(model.output, functional.outputs))
    return keras.Model(images, rest(chain(images)), name=model.name)


def _line(model):
    """Return the line of layers that a functional model begins with, and the tensors it returns."""
    line, end = [], model.inputs
    for node in nodes(model)[1:]:
        users = [
            one for one in nodes(model) if not set(_ids(end)).isdisjoint(_ids(one.input_tensors))
        ]
        args, kwargs = node.arguments.args, node.arguments.kwargs
        # Keras records the default `training=False`, and replaces it when the model runs.
        is_plain = len(args) == 1 and all(value in (None, False) for value in kwargs.values())
        if (
            len(users) != 1
            or not set(_ids(end)).isdisjoint(_ids(model.outputs))
            or not (is_plain and _ids(args) == _ids(end))
            or not isinstance(node.operation, keras.layers.Layer)
            or sum(node.operation is one.operation for one in nodes(model)) > 1
        ):
            break
        line.append(node.operation)
        end = node.outputs
    return line, end


def _ids(tensors) -> list[int]:
    return list(map(id, keras.tree.flatten(tensors)))
