"""`keras-vitx list`: the sizes, or the checkpoints."""

import fnmatch
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

import keras_vitx as kv
from keras_vitx.cli._options import Backend, Csv, Json
from keras_vitx.cli._output import Rows, show


def main(
    pattern: Annotated[str, typer.Argument(help='Shell pattern, such as "CaiT_S*".')] = "*",
    weights: Annotated[
        bool,
        typer.Option("--weights", help="List checkpoints, by their name or by that of the size."),
    ] = False,
    json: Json = False,
    csv: Csv = False,
    backend: Backend = None,
) -> None:
    """List the sizes, or the checkpoints."""
    rows = _checkpoints(pattern) if weights else _sizes(pattern)
    show(
        rows,
        as_json=json,
        as_csv=csv,
        formats={"top-1 %": lambda top1: f"{top1:.2f}" if top1 else ""},
    )


def _sizes(pattern: str) -> Rows:
    names = kv.list_models(pattern)
    if not names:
        raise ValueError(f"No size matches {pattern!r}. `keras-vitx list` shows them all.")
    return [
        {
            "size": name,
            **_facts(kv.models.constructor_of(name)),
            "checkpoints": len(kv.weights.checkpoints_of(name)),
        }
        for name in names
    ]


def _checkpoints(pattern: str) -> Rows:
    found = [
        entry
        for entry in kv.weights.checkpoints_of(None)
        if any(
            fnmatch.fnmatch(name.lower(), pattern.lower())
            for name in (entry.name, entry.constructor)
        )
    ]
    if not found:
        raise ValueError(
            f"No checkpoint matches {pattern!r}. `keras-vitx list --weights` shows them all."
        )
    return [
        {
            "checkpoint": entry.name,
            "size": entry.constructor,
            "image size": entry.image_size,
            "top-1 %": entry.top1,
            "crop": entry.preprocessing.crop_ratio,
            "licence": entry.licence,
            "source": entry.source,
        }
        for entry in found
    ]


def _facts(constructor: Callable) -> dict[str, Any]:
    """Return the table entries of a size; a size in stages has one number per stage."""
    arguments = inspect.signature(kv.models.FAMILIES[constructor.family]).parameters.values()
    defaults = {each.name: each.default for each in arguments if each.default is not each.empty}
    data = {**defaults, **constructor.data}
    columns = {
        "width": ("dim", "dims"),
        "depth": ("depth", "depths"),
        "heads": ("num_heads",),
        "patch": ("patch_size",),
    }
    return {"family": constructor.family} | {
        column: next((data[key] for key in keys if key in data), None)
        for column, keys in columns.items()
    }
