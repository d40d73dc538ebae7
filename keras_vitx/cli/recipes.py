"""`keras-vitx recipes`: list the recipes, print one, or compare two."""

import importlib
from typing import Annotated

import typer

import keras_vitx as kv
from keras_vitx.cli._options import Backend, Json
from keras_vitx.cli._output import show, show_json


def main(
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe, or the folder of a run.")
    ] = None,
    other: Annotated[
        str | None, typer.Argument(help="Another one, whose differences are shown.")
    ] = None,
    json: Json = False,
    backend: Backend = None,
) -> None:
    """List the recipes, print one, or show the differences of two."""
    if recipe is None:
        show([_facts(name) for name in kv.training.list_recipes()], as_json=json)
        return
    first = kv.training.recipes.get(recipe)
    if other is None:
        if json:
            show_json(first.to_dict())
        else:
            typer.echo(first)
        return
    second = kv.training.recipes.get(other)
    differences = first.differences(second)
    rows = [
        {"setting": name, recipe: mine, other: theirs}
        for name, (mine, theirs) in differences.items()
    ]
    if rows:
        show(rows, as_json=json, formats={recipe: str, other: str})
    else:
        typer.echo("The recipes agree.")


def _facts(name: str) -> dict:
    module = importlib.import_module(f"keras_vitx.training.recipes.{name}")
    schedule = module.RECIPE.schedule
    return {
        "recipe": name,
        "what it does": module.__doc__.partition("\n")[0],
        "epochs": schedule.all_epochs,
        "batch": schedule.batch_size,
        "learning rate": f"{schedule.peak:g}",
    }
