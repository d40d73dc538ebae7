"""The objects that the config of an untrusted model may refer to."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

# Kinds of Keras layers that only compute. Others can run code from their config, or open
# files named in it.
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


def foreign_objects(config: Any) -> dict[str, str | None]:
    """Return the objects of a config that belong neither to this package nor to plain Keras.

    Args:
        config: The result of `keras.saving.serialize_keras_object`.

    Returns:
        The defining module of each object according to the config, by registered name.
    """
    found = {}
    for part in _parts(config):
        if isinstance(part, dict) and "class_name" in part:
            name, registered, allowed = _resolve(part)
            if not allowed:
                module = part.get("module")
                found[str(registered or name)] = module if isinstance(module, str) else None
        elif isinstance(part, str) and ">" in part:
            # Keras replaces a registered name by the object anywhere in a config.
            known = keras.saving.get_registered_object(part)
            if known is not None and not _is_ours(known):
                found.setdefault(part, getattr(known, "__module__", None))
    return found


def how_to_give(objects: Mapping[str, str | None]) -> str:
    """Return the `custom_objects=` argument for the result of `foreign_objects`, for an error."""
    given = ", ".join(f"{name!r}: {name.rpartition('>')[2]}" for name in sorted(objects))
    modules = sorted({module for module in objects.values() if module} - {"__main__", "builtins"})
    imports = f", from {' and '.join(modules)}" * bool(modules)
    return f"custom_objects={{{given}}}{imports}"


def _parts(value: Any) -> Iterator[Any]:
    """Yield a config and everything nested in it."""
    yield value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        yield from _parts(item)


def _resolve(entry: dict) -> tuple[Any, Any, bool]:
    """Return the name and registered name that Keras resolves, and whether they are allowed."""
    name, module = entry["class_name"], entry.get("module")
    if name == "function":
        name = registered = entry.get("config")
    else:
        registered = entry.get("registered_name", name)
    if not isinstance(name, str) or not isinstance(registered, str | None):
        return name, None, False
    # Keras looks up registered objects first.
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
