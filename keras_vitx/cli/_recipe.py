"""Recipes on the command line: their names, changed settings, and a short trial."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

# Not by `kv.training.list_recipes`, because Keras is imported after the options are parsed.
NAMES = sorted(
    path.stem for path in (Path(__file__).parents[1] / "training" / "recipes").glob("[!_]*.py")
)
RecipeName = Annotated[
    str,
    typer.Option(help=f"One of {', '.join(NAMES)}; or the folder of a run, whose recipe it is."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting of the recipe, such as mixup=0.2 or clip_norm=none; may be "
        "repeated. `keras-vitx list --recipes NAME` shows them all.",
    ),
]
Smoke = Annotated[
    bool,
    typer.Option("--smoke", help="Try all parts of the recipe on a few images, in a few steps."),
]
SMOKE_STEPS = 3


def changes_of(words: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """Return settings by name from texts such as `mixup=0.2`.

    Values are numbers, `true`, `false`, `none`, several numbers separated by commas, or
    else text.

    Raises:
        ValueError: if a text has no `=`.
    """
    changes = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"`{option}` takes NAME=VALUE. Received: {word!r}.")
        changes[name.strip()] = _value(value.strip())
    return changes


def weights_of(text: str | None) -> dict[Any, float] | None:
    """Return the weights of classes, by name or label, from a text such as `cat=2,dog=0.5`.

    Raises:
        ValueError: if the text is of another form.
    """
    if text is None:
        return None
    weights = {}
    for pair in text.split(","):
        name, _, weight = pair.rpartition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            name = ""
        if not name.strip():
            raise ValueError(f"`--class-weight` takes NAME=WEIGHT,... Received: {text!r}.")
    return weights


def a_few_images(source: Any, recipe: Any) -> Any:
    """Return an opened source with enough images for a few steps per epoch."""
    batch = recipe.batch_size
    counts = {"train": SMOKE_STEPS * batch, "validation": batch, "test": batch}
    parts = {}
    for name, count in counts.items():
        split = getattr(source, name)
        if split is not None:
            chosen = np.linspace(0, split.size - 1, min(count, split.size)).astype(int)
            parts[name] = split.take(chosen)
    return dataclasses.replace(source, **parts)


def _value(text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(_value(part.strip()) for part in text.split(","))
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
