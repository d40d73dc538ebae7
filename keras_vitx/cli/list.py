"""`keras-vitx list`: sizes, checkpoints, recipes, and images that can't be decoded."""

import fnmatch
import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

import keras_vitx as kv
from keras_vitx.cli._options import (
    Backend,
    Csv,
    Json,
    is_saved,
    is_size,
    open_model,
)
from keras_vitx.cli._output import Rows, check_form, say, show, show_json, words


def main(
    names: list[str] | None = Argument(
        None,
        help='Shell patterns of sizes, such as "CaiT_S*"; one size, .keras file, directory of '
        "`kv.save` or hf://owner/repo for its details.",
        metavar="[NAME]...",
    ),
    weights: bool = Option(False, "--weights", help="List checkpoints, by their name or size."),
    recipes: bool = Option(
        False,
        "--recipes",
        help="List recipes; print one, by its name or the directory of a run; compare two.",
    ),
    damaged: bool = Option(
        False, "--damaged", help="List the images, of files and directories, that can't be decoded."
    ),
    json: Json = False,
    csv: Csv = False,
    backend: Backend = None,
) -> None:
    """List sizes, checkpoints, recipes or damaged images."""
    check_form(json, csv)
    if weights + recipes + damaged > 1:
        raise ValueError("`--weights`, `--recipes` and `--damaged` are mutually exclusive.")
    names = names or []
    form = {"as_json": json, "as_csv": csv}
    if damaged:
        _show_damaged(names, json)
    elif recipes:
        _show_recipes(names, form)
    elif weights:
        show(_checkpoints(names or ["*"]), **form, formats=COLUMN_FORMATS)
    elif len(names) == 1 and (is_size(names[0]) or is_saved(names[0])):
        _show_one(names[0], form)
    else:
        show(_sizes(names or ["*"]), **form)


COLUMN_FORMATS = {"top-1 %": lambda top1: f"{top1:.2f}" if top1 else ""}


def _show_one(model: str, form: dict[str, bool]) -> None:
    """Show the size, parameters, preprocessing, class names and checkpoints of a model."""
    from keras_vitx.outputs import class_names_of

    network = open_model(model)
    values: dict[str, Any] = {"model": model}
    if is_size(model):
        values |= kv.models.MODELS[model].data
    else:
        values["input_shape"] = network.input_shape[1:]
        values["output_shape"] = network.output_shape[1:]
    values["family"] = getattr(network, "family", None) or "none of keras_vitx"
    values["parameters"] = network.count_params()
    if preprocessing := getattr(network, "preprocessing", None):
        values |= preprocessing.to_dict()
    if names := class_names_of(network):
        values["class names"] = names
    checkpoints = [_checkpoint(entry) for entry in kv.weights.checkpoints_of(model)]
    if form["as_json"]:
        show_json({**values, "checkpoints": checkpoints})
        return
    values["checkpoints"] = [entry["checkpoint"] for entry in checkpoints] or "no public one"
    rows = [{"of": name, "value": value} for name, value in values.items()]
    show(rows, **form, formats={"value": lambda v: f"{v:,}" if isinstance(v, int) else words(v)})
    if checkpoints and not form["as_csv"]:
        show(checkpoints, formats=COLUMN_FORMATS)


def _sizes(patterns: Sequence[str]) -> Rows:
    sizes: dict[str, Callable] = {}
    for pattern in patterns:
        if not (names := kv.list_models(pattern)):
            raise ValueError(f"No size matches {pattern!r}. `keras-vitx list` shows them all.")
        sizes |= {name: kv.models.MODELS[name] for name in names}
    return [_size(name, constructor) for name, constructor in sizes.items()]


def _size(name: str, constructor: Callable) -> dict[str, Any]:
    """Return the row of a size, with one number per stage."""
    arguments = inspect.signature(kv.models.build.FAMILIES[constructor.family]).parameters.values()
    defaults = {each.name: each.default for each in arguments if each.default is not each.empty}
    data = {**defaults, **constructor.data}
    return {
        "size": name,
        "family": constructor.family,
        "width": data.get("dim", data.get("dims")),
        "depth": data.get("depth", data.get("depths")),
        "heads": data.get("num_heads"),
        "patch": data.get("patch_size"),
        "checkpoints": len(kv.weights.checkpoints_of(name)),
    }


def _checkpoints(patterns: Sequence[str]) -> Rows:
    entries = {
        entry.name: entry
        for entry in kv.weights.checkpoints_of(None)
        for pattern in patterns
        for name in (entry.name, entry.constructor)
        if fnmatch.fnmatch(name.lower(), pattern.lower())
    }
    if not entries:
        raise ValueError(
            f"No checkpoint matches {patterns[0]!r}. `keras-vitx list --weights` shows them all."
        )
    return list(map(_checkpoint, entries.values()))


def _checkpoint(entry) -> dict[str, Any]:
    return {
        "checkpoint": entry.name,
        "size": entry.constructor,
        "image size": entry.image_size,
        "classes": entry.classes,
        "top-1 %": entry.top1,
        "crop": entry.preprocessing.crop_ratio,
        "license": entry.license,
        "source": entry.source,
    }


def _show_recipes(names: Sequence[str], form: dict[str, bool]) -> None:
    if len(names) > 2:
        raise ValueError(f"`--recipes` takes at most two names. Received: {', '.join(names)}.")
    recipes = [kv.training.recipes.get(name) for name in names]
    if not recipes:
        show([_recipe(name) for name in kv.training.list_recipes()], **form)
    elif len(recipes) == 1:
        show_json(recipes[0].to_dict()) if form["as_json"] else say(recipes[0])
    elif differences := recipes[0].differences(recipes[1]):
        first, second = names
        rows = [{"setting": key, first: a, second: b} for key, (a, b) in differences.items()]
        show(rows, **form, formats={first: str, second: str})
    else:
        say("The recipes agree.")


def _recipe(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"keras_vitx.training.recipes.{name}")
    recipe = module.RECIPE
    return {
        "recipe": name,
        "what it does": (module.__doc__ or "").partition("\n")[0],
        "epochs": recipe.all_epochs,
        "batch": recipe.batch_size,
        "learning rate": f"{recipe.peak:g}",
    }


def _show_damaged(names: Sequence[str], json: bool) -> None:
    """List the images that can't be decoded; the exit code is 1 if there are any."""
    from keras_vitx.data.sources.directories import image_files, unreadable

    if not names:
        raise ValueError("`--damaged` takes image files or directories. Received: none.")
    paths, unsupported = [], []
    for path in map(Path, names):
        paths += image_files(path, unsupported) if path.is_dir() else [path]
    errors = {str(path): str(error) for path, error in unreadable(paths).items()}
    errors |= {
        str(path): f"{path} has a format that Pillow can't read here." for path in unsupported
    }
    count = len(paths) + len(unsupported)
    if json:
        show_json({"images": count, "errors": errors})
    else:
        for error in errors.values():
            say(error)
        say(f"{count:,} images, {len(errors):,} can't be decoded.")
    if errors:
        raise typer.Exit(1)
