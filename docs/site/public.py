"""Public names, by their paths."""

import sys
import types
from collections.abc import Iterator

import keras_vitx as kv

MODULES = [f"keras_vitx.{name}" for name, value in vars(kv).items()
           if isinstance(value, types.ModuleType) and hasattr(kv.api, name)]  # fmt: skip
# The last is a function, which has the other public names of its module.
MODULES = ["keras_vitx", *MODULES, "keras_vitx.analysis.measures", "keras_vitx.export"]


def find(path: str) -> object:
    """Return the object with the public name `path`, such as `keras_vitx.layers.MLP`.

    A function named as its module has the other names of it: `keras_vitx.export.Exported`.
    """
    owner, _, name = path.rpartition(".")
    if not owner:
        return kv
    found = find(owner)
    return getattr(found if hasattr(found, name) else sys.modules[owner], name)


def names_of(module: str) -> Iterator[str]:
    """Yield the public names of a module that are not modules or sizes, `keras_vitx.fit`."""
    names = vars(find(module))
    for name in getattr(find(module), "__all__", names):
        value = names[name]
        own = getattr(value, "__module__", "keras_vitx").startswith("keras_vitx")
        hidden = name.startswith("_") or isinstance(value, types.ModuleType)
        if own and not hidden and name not in kv.list_models():
            yield f"{module}.{name}"


def documented_in(module: str) -> list[str]:
    """Return the names on the page of a module: those of `keras_vitx` itself are on other pages."""
    elsewhere = {id(find(name)) for name in names_of("keras_vitx")}
    own = [name for name in names_of(module) if id(find(name)) not in elsewhere]
    return [f"{module}.export", *own] if module == "keras_vitx.export" else own
