"""Writes what follows from the sizes (`make sizes`).

That is keras_vitx/models/sizes.pyi, by which editors and type checkers know the parameters, rows
and GMACs of docs/sizes.md, and sizes.json, which `keras-vitx list` prints. Numbers of parameters
that are there stay: they are those of public code.
"""

import inspect
import json
import re
from functools import cache
from itertools import groupby
from math import prod
from pathlib import Path

import keras

import keras_vitx as kv
from keras_vitx.models.build import FAMILIES, MODELS
from keras_vitx.weights import checkpoints_of

PATH = Path(kv.models.__file__).with_name("sizes.pyi")
TABLE = Path(__file__).parents[1] / "docs" / "sizes.md"
ROW = r"^\| (\w+) \| ([\d, +]+) \| ([\d, ]+) \| ([\d, –]+) \| ([\d,]+) \| ([\d.]*)"
ROWS = re.findall(ROW, TABLE.read_text(), re.MULTILINE)
SIZES = {name: cells for name, *cells, _ in ROWS}
"""Blocks, width, heads and parameters of each size, as docs/sizes.md has them."""
COUNTS = {name: int(cells[-1].replace(",", "")) for name, cells in SIZES.items()}
GMACS = {name: gmacs for name, *_, gmacs in ROWS if gmacs}
HEAD = """# Written by `make sizes` from the signatures at run time; a test compares them.
# fmt: off
# ruff: noqa: E501, UP007
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, Union

import keras

from keras_vitx.models.chain import Chain

"""
PLACES = {
    "collections.abc.": "",
    "typing.": "",
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


def parameters_and_macs(model):
    return sum(prod(variable.shape) for variable in model.trainable_variables), kv.count_macs(model)


@cache
def counted(name, **arguments):
    """Return the parameters and the multiply-adds of a size without allocating it."""
    return of_unallocated(parameters_and_macs, name, **arguments)


def count(name, **arguments):
    return counted(name, **arguments)[0]


def of_unallocated(function, name, **arguments):
    """Return a function of a model whose variables have no values."""
    try:
        # In this scope, variables have a shape but no value.
        with keras.StatelessScope(initialize_variables=False):
            model = kv.create_model(name, **arguments)
        assert all(variable._value is None for variable in model.weights)
        return function(model)
    finally:
        keras.utils.clear_session()  # Keras keeps a list of variables without values.


def new_rows():
    """Return the sections of docs/sizes.md for sizes that it lacks."""
    text = ""
    new = [name for name in MODELS if name not in SIZES]
    for family, names in groupby(new, lambda name: MODELS[name].family):
        text += f"\n## {family}\n\n| size | blocks | width | heads | parameters | GMACs |\n"
        text += "|---|---|---|---|---|---|\n"
        for name in names:
            data = MODELS[name].data
            cells = [
                ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
                for value in (
                    data.get("depths", data.get("depth")),
                    data.get("dims", data.get("dim")),
                    data.get("num_heads", "–"),
                )
            ]
            text += f"| {' | '.join([name, *cells])} | {count(name):,} | {gmacs(name)} |\n"
    return text


def gmacs(name, **arguments):
    """Return the multiply-adds of a size, as docs/sizes.md and the README have them."""
    return f"{counted(name, **arguments)[1] / 1e9:.2f}"


def with_gmacs(text):
    """Return the text of docs/sizes.md with the multiply-adds of today."""
    for name in GMACS:
        row = ROW.replace(r"(\w+)", f"({name})")
        text = re.sub(
            row, lambda m: m[0].removesuffix(m[6]) + gmacs(m[1]), text, flags=re.MULTILINE
        )
    return text


def listed():
    """Return a line of JSON per size: its numbers, and top-1 of its best checkpoint at its size."""
    lines = []
    for name, size in MODELS.items():
        side = size.data["input_shape"][0]
        fitting = [each for each in checkpoints_of(name) if each.image_size == side]
        best = max(fitting, key=lambda each: each.top1 or 0, default=None)
        row = {"size": name, "parameters, M": (COUNTS.get(name) or count(name)) / 1e6}
        row |= {"GMACs": float(GMACS.get(name) or gmacs(name)), "top-1, %": best and best.top1}
        row["image size"] = side
        lines.append(json.dumps(row, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    PATH.write_text(stub())
    TABLE.write_text(with_gmacs(TABLE.read_text()) + new_rows())
    PATH.with_suffix(".json").write_text(listed())
