"""Options that several commands share. They are parsed before Keras is imported."""

from typing import Annotated, Literal

import typer

from keras_vitx import backend


def _choose(wanted: str | None) -> str | None:
    backend.choose(wanted)
    return wanted


Backend = Annotated[
    Literal["tensorflow", "jax", "torch"] | None,
    typer.Option(
        callback=_choose,
        help="Backend of Keras. Default: KERAS_BACKEND, else an installed one.",
    ),
]
ModelOrFile = Annotated[
    str,
    typer.Argument(
        help="A size such as CaiT_XXS24 (see `keras-vitx list`), a .keras file, a folder "
        "written by `kv.save`, or hf://owner/repo.",
        metavar="MODEL",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Weights of a size: imagenet, the name of a checkpoint, hf://owner/repo, a file, or "
        "none for random weights."
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="fashion_mnist (the shipped sample), a folder with one sub-folder per class, "
        "tfds:NAME, or an .npz with x_train, y_train, x_test, y_test.",
        metavar="SOURCE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at an image that can't be decoded.")]
