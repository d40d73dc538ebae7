"""Options and words that several verbs share."""

from pathlib import Path
from typing import Annotated, Literal

import keras
import typer
from rich.console import Console

from keras_vitx import models
from keras_vitx.models.folders import load
from keras_vitx.text import nearest

console = Console()

Backend = Annotated[
    Literal["tensorflow", "jax", "torch"] | None,
    typer.Option(help="Backend of Keras. Default: KERAS_BACKEND, else one that is installed."),
]
Model = Annotated[str, typer.Argument(help="A size, such as CaiT_XXS24 (see `keras-vitx list`).")]
ModelOrFile = Annotated[
    str,
    typer.Argument(
        help="A size, such as CaiT_XXS24 (see `keras-vitx list`), a .keras file, a folder that "
        "`kv.save` wrote, or hf://owner/repo.",
        metavar="MODEL_OR_FILE",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Weights to start from: imagenet, a checkpoint's name, hf://owner/repo, or a file."
    ),
]


def open_model(model: str, weights: str | None = None, **arguments) -> keras.Model:
    """Return the size `model`, or the model that the file, folder or repository `model` holds.

    Raises:
        ValueError: when there is none of them, when it holds no model, or when
            weights are given beside it.
    """
    if model in models.MODELS:
        return models.create_model(model, weights=weights, **arguments)
    saved = model.startswith("hf://") or Path(model).is_dir()
    if not saved and not model.endswith(".keras"):
        raise ValueError(
            f"{model!r} is neither a size nor a .keras file nor a folder. "
            f"{nearest(model, models.MODELS)}"
        )
    if not saved and not Path(model).is_file():
        raise ValueError(f"There is no file {model!r}.")
    if weights is not None:
        raise ValueError(f"`--weights` goes with a size; {model!r} has its own weights.")
    return load(model)


def new_run(name: str) -> Path:
    """Return a folder under `runs/` that doesn't exist yet."""
    number = 1
    while (folder := Path("runs", f"{name}-{number}")).exists():
        number += 1
    return folder
