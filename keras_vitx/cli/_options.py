"""Options and words that several verbs share."""

from pathlib import Path
from typing import Annotated, Literal

import keras
import typer
from rich.console import Console

from keras_vitx import models
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
        help="A size, such as CaiT_XXS24 (see `keras-vitx list`), or a .keras file.",
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
    """Return the size `model`, or the model that the file `model` holds.

    Raises:
        ValueError: when there is neither, when the file holds no model, or when
            weights are given beside a file.
    """
    if model in models.MODELS:
        return models.create_model(model, weights=weights, **arguments)
    if not model.endswith(".keras"):
        raise ValueError(
            f"{model!r} is neither a size nor a .keras file. {nearest(model, models.MODELS)}"
        )
    if not Path(model).is_file():
        raise ValueError(f"There is no file {model!r}.")
    if weights is not None:
        raise ValueError(f"`--weights` goes with a size; the file {model!r} has its own weights.")
    try:
        return keras.saving.load_model(model, compile=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"The file {model!r} can't be read as a Keras model: {reason}") from error


def new_run(name: str) -> Path:
    """Return a folder under `runs/` that doesn't exist yet."""
    number = 1
    while (folder := Path("runs", f"{name}-{number}")).exists():
        number += 1
    return folder
