"""Conversion of functional Keras models, such as one cut from a `Chain`, to a `Chain`."""

import itertools

import keras

from keras_vitx.checks import check
from keras_vitx.keras_internals import nodes
from keras_vitx.models.chain import Chain


def as_chain(model: keras.Model) -> Chain:
    """Return a functional model that is a line of layers as a `Chain`.

    A model cut from a `Chain`, such as `keras.Model(base.input, Dense(5)(base.output))` or
    `keras.Model(base.input, base.get_layer("blocks_7").output)`, and the result of
    `keras.models.clone_model`, run their layers as Keras does. Under JAX on a CPU that
    trains more slowly than a `Chain`, whose blocks are calls. The result has the same layers, and
    therefore the same weights; it is not compiled, and states no preprocessing.

    Args:
        model: A functional model, in which each layer takes the output of the previous one.

    Raises:
        ValueError: if `model` branches or has operations that are not layers. Call a `Chain` as a
            layer instead: `keras.Model(images, head(base(images)))`.
    """
    if isinstance(model, Chain):
        return model
    layers: list[keras.layers.Layer] = []
    # Of a `Sequential`, too.
    functional = keras.Model(model.inputs, model.outputs)
    end = functional.inputs
    for node in nodes(functional)[1:]:
        args, kwargs = node.arguments.args, node.arguments.kwargs
        # Keras records the default `training=False`, and replaces it when the model runs.
        is_plain = len(args) == 1 and all(value in (None, False) for value in kwargs.values())
        is_layer = isinstance(node.operation, keras.layers.Layer)
        is_next = is_layer and is_plain and _ids(args) == _ids(end) and node.operation not in layers
        rule = "`model` must be a line of layers, each of which takes the output of the one before."
        check(is_next, rule, node.operation.name)
        layers.append(node.operation)
        end = node.outputs
    is_last = _ids(end) == _ids(functional.outputs)
    check(is_last, "`model` must have the output of its last layer.", functional.outputs)
    inner = (layer.layers if isinstance(layer, Chain) else [layer] for layer in layers)
    layers = [*itertools.chain(*inner)]
    images = {"dtype": model.inputs[0].dtype, "name": model.inputs[0].name}
    return Chain(layers, model.input_shape[1:], name=model.name, images=images)


def _ids(tensors) -> list[int]:
    return list(map(id, keras.tree.flatten(tensors)))
