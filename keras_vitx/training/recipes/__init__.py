"""Recipes by name: a file of settings each, in TOML."""

import os
import tomllib
from pathlib import Path

from keras_vitx.checks import check
from keras_vitx.files import local_path, read_record
from keras_vitx.text import nearest
from keras_vitx.training.recipe import Recipe

FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}


def list_recipes() -> list[str]:
    """Return the names of the recipes."""
    return list(FILES)


def get(recipe: str | os.PathLike | Recipe) -> Recipe:
    """Return a recipe by its name, a `.toml` file or the directory of a run; a `Recipe` unchanged.

    A file has settings as `Recipe.replace` takes them, with `"none"` for None, such as
    `mixup = 0.2`. `based_on = "deit"` names the recipe that they change, or a file beside.

    Raises:
        ValueError: if there is no such recipe, with the nearest names, or a setting is wrong.
        OSError: if a file can't be read.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if str(recipe).endswith(".toml"):
        return _read(recipe, local_path(recipe))
    if isinstance(recipe, os.PathLike) or os.path.isdir(str(recipe)):
        return Recipe("run").replace(**read_record(recipe)["recipe"])
    rule = "`recipe` must be a name, a `.toml` file, the directory of a run or a `Recipe`."
    check(str(recipe) in FILES, f"{rule} {nearest(recipe, FILES)}", recipe)
    return _read(recipe, FILES[recipe])


def _read(name, path):
    settings = tomllib.loads(path.read_text("utf-8-sig"))
    settings = {key: None if value == "none" else value for key, value in settings.items()}
    base = settings.pop("based_on", None)
    base = path.parent / base if str(base).endswith(".toml") else base
    base = get(base) if base else Recipe(str(name))
    return base.replace(**{"name": str(name), **settings})
