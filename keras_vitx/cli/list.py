"""`keras-vitx list`: the sizes."""

from typing import Annotated

import typer
from rich.table import Table

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
    table = Table("size", "family", "width", "depth", "heads", "patch", "checkpoints")
    for name in names:
        constructor = models.constructor_of(name)
        facts = {"patch_size": 16, **constructor.data}
        table.add_row(
            name,
            constructor.family,
            *(str(facts[key]) for key in ("dim", "depth", "num_heads", "patch_size")),
            str(len(weights.checkpoints_of(name))),
        )
    console.print(table)
