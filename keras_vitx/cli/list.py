"""`keras-vitx list`: the sizes, or the checkpoints."""

import fnmatch
import inspect
from collections.abc import Callable
from typing import Annotated

import typer
from rich.table import Column, Table

from keras_vitx import models
from keras_vitx import weights as checkpoints
from keras_vitx.cli._options import Backend, console


def main(
    pattern: Annotated[str, typer.Argument(help='Shell pattern, such as "CaiT_S*".')] = "*",
    weights: Annotated[
        bool, typer.Option("--weights", help="List checkpoints; the pattern is theirs or a size's.")
    ] = False,
    backend: Backend = None,
) -> None:
    """List the sizes and how many checkpoints each has, or the checkpoints."""
    console.print(_checkpoints(pattern) if weights else _sizes(pattern))


def _sizes(pattern: str) -> Table:
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
            str(len(checkpoints.checkpoints_of(name))),
        )
    return table


def _checkpoints(pattern: str) -> Table:
    found = [
        entry
        for entry in checkpoints.checkpoints_of(None)
        if any(
            fnmatch.fnmatch(name.lower(), pattern.lower())
            for name in (entry.name, entry.constructor)
        )
    ]
    if not found:
        raise ValueError(
            f"No checkpoint matches {pattern!r}. `keras-vitx list --weights` shows them all."
        )
    table = Table(
        Column("checkpoint", overflow="fold"),
        Column("size", no_wrap=True),
        "image size",
        "top-1 %",
        "crop",
        "licence",
        Column("source", overflow="fold"),
    )
    for entry in found:
        table.add_row(
            entry.name,
            entry.constructor,
            str(entry.image_size),
            "" if entry.top1 is None else f"{entry.top1:.2f}",
            f"{entry.preprocessing.crop_ratio:g}",
            entry.licence,
            entry.source,
        )
    return table


def _facts(constructor: Callable) -> list[str]:
    """Return width, depth, heads and patch of a size; a size in stages has several of a kind."""
    defaults = inspect.signature(getattr(models, constructor.family)).parameters
    data = {"patch_size": defaults["patch_size"].default, **constructor.data}
    columns = (("dim", "dims"), ("depth", "depths"), ("num_heads",), ("patch_size",))
    values = [next((data[key] for key in keys if key in data), "") for keys in columns]
    return [
        ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values
    ]
