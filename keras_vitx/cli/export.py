"""`keras-vitx export`: a SavedModel that runs without this package."""

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import keras_vitx as kv
from keras_vitx.cli._models import is_size, open_model
from keras_vitx.cli._options import Backend, ModelOrFile, Overwrite, Weights
from keras_vitx.files import check_writable


def main(
    model: ModelOrFile,
    output: Annotated[Path, typer.Argument(help="Folder to write the SavedModel to.")],
    weights: Weights = None,
    verify: Annotated[
        bool,
        typer.Option(help="Load the result with TensorFlow alone and compare its outputs."),
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest accepted difference, relative to the largest output.", min=0),
    ] = None,
    overwrite: Overwrite = False,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Module that registers custom layers of the model. Repeatable.",
        ),
    ] = None,
    backend: Backend = None,
) -> None:
    """Write a model as a TensorFlow SavedModel."""
    from keras_vitx.export.formats import FORMATS
    from keras_vitx.export.place import check_free

    check_writable(output)
    check_free(output, FORMATS["saved_model"], overwrite)
    if is_size(model) and weights is None:
        raise ValueError(
            f"{model} is a size, which has no weights. Give `--weights`, or `--weights none` to "
            "export random weights."
        )
    if imports:
        # Installed scripts do not look for modules in the current folder.
        sys.path.append(os.getcwd())
    for module in imports or ():
        importlib.import_module(module)
    network = open_model(model, weights)
    exported = kv.export.saved_model(
        network,
        output,
        verify=verify,
        tolerance=tolerance,
        overwrite=overwrite,
        imports=imports or (),
    )
    typer.echo(f"SavedModel: {exported.path}")
    if exported.difference is not None:
        typer.echo(f"Its outputs are within {exported.difference:.1e} of the model's.")
