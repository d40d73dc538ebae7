"""Serialized Keras objects: the classes and functions that they name, and models made from them."""

import contextlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import sublayers

# What Keras reads as data, without calling anything that a config names.
DATA = ("__numpy__", "__tensor__", "__keras_tensor__", "__bytes__", "__slice__", "__ellipsis__")


def objects_in(config: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the names of classes and functions in a config, and what Keras finds for each.

    That is None if it finds nothing: no registered object, and none of Keras's own.
    """
    nodes = [config]
    for node in nodes:
        if isinstance(node, (list, tuple)):
            nodes.extend(node)
        elif isinstance(node, dict):
            nodes.extend(node.values())
            if "class_name" in node and not _is_data(node):
                yield _resolve(node)
        elif isinstance(node, str) and ">" in node:
            # Keras replaces a registered name by the object anywhere in a config.
            found = keras.saving.get_registered_object(node)
            if found is not None:
                yield node, found


def _is_data(node: dict) -> bool:
    if node["class_name"] in ("__numpy__", "__tensor__"):
        # Others of NumPy's dtypes have items of any size.
        try:
            keras.backend.standardize_dtype(node["config"]["dtype"])
        except (KeyError, TypeError, ValueError):
            return False
    return node["class_name"] in DATA


def _resolve(node: dict) -> tuple[str, Any]:
    name, module = node["class_name"], node.get("module")
    registered = node.get("registered_name", name)
    if name == "function":
        name = registered = node.get("config")
        module = "keras.activations" if module == "builtins" else module
    if not isinstance(name, str) or not isinstance(registered, str | None):
        return str(name), None
    # Keras looks up registered objects first.
    found = keras.saving.get_registered_object(registered)
    package, _, path = f"{module}.{name}".partition(".")
    if found is None and package == "keras":
        with contextlib.suppress(AttributeError):
            found = operator.attrgetter(path)(keras)
    return registered or name, found


def packed(model: keras.Model) -> tuple[dict[str, Any], list[np.ndarray], dict[str, type]]:
    """Return the config of a model, as from JSON and without how it is compiled; weights; classes.

    The classes are those of its layers, by the names in the config. A `.keras` file would hold
    quantized weights with their LoRA updates merged and rounded.
    """
    config = json.loads(
        json.dumps(keras.saving.serialize_keras_object(model)),
        object_hook=lambda each: {k: v for k, v in each.items() if k != "compile_config"},
    )
    # NumPy has no bfloat16.
    dtypes = ["float32" if "float" in each.dtype else each.dtype for each in model.weights]
    weights = map(keras.ops.cast, model.weights, dtypes)
    name_of = keras.saving.get_registered_name
    classes = {name_of(type(layer)): type(layer) for layer in sublayers(model)}
    return config, list(map(keras.ops.convert_to_numpy, weights)), classes


def unpacked(
    config: dict[str, Any], weights: Sequence[np.ndarray], classes: Mapping[str, Any]
) -> keras.Model:
    """Return a new model from what `packed` returned."""
    model = keras.saving.deserialize_keras_object(config, custom_objects=classes)
    model.set_weights(weights)
    for layer in sublayers(model):
        # `Normalization` derives the tensors of its call from its weights.
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()
    return model


def remade(model: keras.Model, change: Callable[[dict[str, Any]], Any] = id) -> keras.Model:
    """Return a copy of a model with its own weights, after a change of its config in place."""
    config, weights, classes = packed(model)
    change(config)
    return unpacked(config, weights, classes)
