"""The classes and functions that a serialized Keras object names."""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import keras

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


def check_registered(model: keras.Model) -> None:
    """Raise a ValueError, before long work, if a saved file of the model could not be read again.

    Keras saves the names of classes and functions, and finds only those that are registered.
    """
    kind = type(model)
    try:
        config = keras.saving.serialize_keras_object(model.get_config())
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(f"`model` can't be saved: {error}") from error
    named = {"class_name": kind.__name__, "module": kind.__module__, "config": config}
    named["registered_name"] = keras.saving.get_registered_name(kind)
    missing = {name for name, found in objects_in(named) if found is None}
    # As an activation, a lambda has no name in the config.
    activations = [getattr(layer, "activation", None) for layer in sublayers(model)]
    if any(getattr(each, "__name__", None) == "<lambda>" for each in activations):
        missing.add("__lambda__")
    if missing:
        names = ", ".join(sorted(missing)).replace("__lambda__", "a lambda")
        raise ValueError(
            "`model` must be made of classes and functions that are registered with Keras, which "
            f"reads files by their names. Received: {names}, not registered. Decorate it with "
            '@keras.saving.register_keras_serializable(package="mine"), a lambda as a function.'
        )
