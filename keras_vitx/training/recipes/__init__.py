"""Recipes by name, one file each."""

import importlib
import os
import pkgutil

from keras_vitx.text import nearest
from keras_vitx.training.recipe import Recipe


def list_recipes() -> list[str]:
    """Return the names of the recipes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(recipe: str | os.PathLike | Recipe) -> Recipe:
    """Return the recipe of that name, or of a run; a `Recipe` is returned unchanged.

    Args:
        recipe: A name of `list_recipes`, the folder of a training run, or a `Recipe`.

    Raises:
        ValueError: if there is no such recipe; the message suggests the nearest names.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, os.PathLike) or os.path.isdir(recipe):
        return Recipe.read(recipe)
    if recipe not in list_recipes():
        raise ValueError(f"No recipe is named {recipe!r}. {nearest(recipe, list_recipes())}")
    return importlib.import_module(f"{__name__}.{recipe}").RECIPE
