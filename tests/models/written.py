"""Writes keras_vitx/models/sizes.pyi, by which editors and type checkers know the parameters.

python tests/models/stub.py
"""

import inspect
from pathlib import Path

import keras_vitx as kv
from keras_vitx.models.build import FAMILIES, MODELS

PATH = Path(kv.models.__file__).with_name("sizes.pyi")
HEAD = """# Written by tests/models/stub.py from the signatures at run time; a test compares them.
# fmt: off
# ruff: noqa: E501
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import keras

from keras_vitx.models.chain import Chain

"""
PLACES = {
    "collections.abc.": "",
    "keras.src.initializers.initializer.": "keras.initializers.",
    "keras.src.layers.layer.": "keras.layers.",
}
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def written(parameters, self=""):
    """Return the source of a signature."""
    words = [self] * bool(self)
    if not any(each.kind is not KEYWORD for each in parameters):
        words.append("*")
    for index, each in enumerate(parameters):
        if each.kind is KEYWORD and index and parameters[index - 1].kind is not KEYWORD:
            words.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        kind = inspect.formatannotation(each.annotation)
        words.append(f"{each.name}: {kind}{default.replace('Ellipsis', '...')}")
    text = ", ".join(words)
    for private, public in PLACES.items():
        text = text.replace(private, public)
    return f"({text}) -> Chain: ..."


def stub():
    """Return the text of the stub."""
    lines = []
    for name, family in FAMILIES.items():
        parameters = list(inspect.signature(family).parameters.values())
        lines.append(f"def {name}{written(parameters)}\n")
        sizes = {size: made for size, made in MODELS.items() if made.family == name}
        *main, _ = inspect.signature(next(iter(sizes.values()))).parameters.values()
        taken = {each.name for each in main}
        others = [
            each.replace(kind=KEYWORD, default=...) for each in parameters if each.name not in taken
        ]
        # Sizes differ in the default number of classes.
        main = [each.replace(default=...) if each.name == "classes" else each for each in main]
        lines += [
            f"class _{name}Size(Protocol):\n",
            f"    def __call__{written([*main, *others], 'self')}\n",
            *(f"{size}: _{name}Size\n" for size in sizes),
        ]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    PATH.write_text(stub())
