"""`keras-vitx list`: the sizes."""

import inspect
from collections.abc import Callable
from typing import Annotated

import typer
from rich.table import Column, Table

from keras_vitx import models, weights
from keras_vitx.cli._options import Backend, console


def main(
    pattern: Annotated[str, typer.Argument(help='Shell pattern, such as "CaiT_S*".')] = "*",
    backend: Backend = None,
) -> None:
    """List the sizes and how many checkpoints each has."""
    names = models.list_models(pattern)
    if not names:
        raise ValueError(f"No size matches {pattern!r}. `keras-vitx list` shows them all.")
    table = Table(
        Column("size", no_wrap=True), "family", "width", "depth", "heads", "patch", "checkpoints"
    )
    for name in names:
        constructor = models.constructor_of(name)
        table.add_row(
            name,
            constructor.family,
            *_facts(constructor),
            str(len(weights.checkpoints_of(name))),
        )
    console.print(table)


def _facts(constructor: Callable) -> list[str]:
    """Return width, depth, heads and patch of a size; a size in stages has several of a kind."""
    defaults = inspect.signature(getattr(models, constructor.family)).parameters
    data = {"patch_size": defaults["patch_size"].default, **constructor.data}
    columns = (("dim", "dims"), ("depth", "depths"), ("num_heads",), ("patch_size",))
    values = [next((data[key] for key in keys if key in data), "") for keys in columns]
    return [
        ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values
    ]
