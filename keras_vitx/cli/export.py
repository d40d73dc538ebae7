"""`keras-vitx export`: a model for a machine without this package."""

from pathlib import Path
from typing import Annotated

import typer

from keras_vitx import export
from keras_vitx.cli._options import Backend, ModelOrFile, Weights, console, open_model


def main(
    model: ModelOrFile,
    output: Annotated[Path, typer.Argument(help="Folder to write the SavedModel to.")],
    weights: Weights = None,
    verify: Annotated[
        bool,
        typer.Option(help="Open the result with TensorFlow alone and compare its outputs."),
    ] = True,
    backend: Backend = None,
) -> None:
    """Write a model as a TensorFlow SavedModel."""
    network = open_model(model, weights)
    export.saved_model(network, output, verify=verify)
    console.print(f"SavedModel: [bold]{output}[/bold]", highlight=False)
