"""Recipes by name, one file each."""

import importlib
import os
import pkgutil

from keras_vitx.checks import check
from keras_vitx.text import nearest
from keras_vitx.training.recipe import Recipe


def list_recipes() -> list[str]:
    """Return the names of the recipes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(recipe: str | os.PathLike | Recipe) -> Recipe:
    """Return a recipe by its name or the directory of a run; a `Recipe` is returned unchanged.

    Raises a ValueError that suggests the nearest names if there is no such recipe.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, os.PathLike) or os.path.isdir(recipe):
        return Recipe.read(recipe)
    rule = "`recipe` must be the name of a recipe, the directory of a run or a `Recipe`."
    check(recipe in list_recipes(), f"{rule} {nearest(recipe, list_recipes())}", recipe)
    return importlib.import_module(f"{__name__}.{recipe}").RECIPE
