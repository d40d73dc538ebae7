"""Public names, by their paths."""

import sys

import keras_vitx as kv


def find(path: str) -> object:
    """Return the object with the public name `path`, such as `keras_vitx.layers.MLP`.

    A function named as its module has the other names of it: `keras_vitx.export.Exported`.
    """
    owner, _, name = path.rpartition(".")
    if not owner:
        return kv
    found = find(owner)
    return getattr(found if hasattr(found, name) else sys.modules[owner], name)
