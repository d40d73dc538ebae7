"""What the config of a model from elsewhere may be made of."""

from collections.abc import Iterator
from typing import Any

import keras

# Of Keras' layers, the kinds that compute and do nothing else; others run code that is
# in their config or open files that it names.
_KINDS = {
    "activations", "attention", "convolutional", "merging", "normalization", "pooling",
    "regularization", "reshaping",
}  # fmt: skip
_CORE = {"Dense", "EinsumDense", "Embedding", "Identity"}
_MODULES = {
    "keras.constraints": keras.constraints,
    "keras.dtype_policies": keras.dtype_policies,
    "keras.initializers": keras.initializers,
    "keras.quantizers": keras.quantizers,
    "keras.regularizers": keras.regularizers,
}


def foreign_objects(config: Any) -> set[str]:
    """Return the names of what a config is made of beyond this package and plain Keras.

    Args:
        config: As `keras.saving.serialize_keras_object` gives it.
    """
    found = set()
    for part in _parts(config):
        if isinstance(part, dict) and "class_name" in part:
            name, registered, allowed = _resolve(part)
            if not allowed:
                found.add(str(registered or name))
        elif isinstance(part, str) and ">" in part:
            # Keras takes a registered name, wherever it stands, for the object.
            known = keras.saving.get_registered_object(part)
            if known is not None and not _is_ours(known):
                found.add(part)
    return found


def _parts(value: Any) -> Iterator[Any]:
    """Give every part of a config, itself first."""
    yield value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        yield from _parts(item)


def _resolve(entry: dict) -> tuple[Any, Any, bool]:
    """Find what Keras takes for an entry: its name, registered name, and whether it may."""
    name, module = entry["class_name"], entry.get("module")
    if name == "function":
        name = registered = entry.get("config")
    else:
        registered = entry.get("registered_name", name)
    if not isinstance(name, str) or not isinstance(registered, str | None):
        return name, None, False
    # What is registered goes before what Keras has under that name.
    known = keras.saving.get_registered_object(registered)
    if known is not None:
        return name, registered, _is_ours(known)
    if entry["class_name"] == "function":
        allowed = module in ("builtins", "keras.activations") and hasattr(keras.activations, name)
    elif module == "keras.layers":
        layer = getattr(keras.layers, name, None)
        kind = getattr(layer, "__module__", "").split(".")[3:4]
        allowed = name in _CORE or (set(kind) <= _KINDS and bool(kind))
    elif module == "keras":
        allowed = name in ("DTypePolicy", "FloatDTypePolicy")
    else:
        allowed = isinstance(getattr(_MODULES.get(module), name, None), type) and name[0] != "_"
    return name, registered, allowed


def _is_ours(known: Any) -> bool:
    return getattr(known, "__module__", "").split(".")[0] == "keras_vitx"
