"""`keras-vitx train`: train or fine-tune a model on a folder, a data set or a sample."""

from pathlib import Path
from typing import Annotated, Literal

import keras
import typer

from keras_vitx import data, training
from keras_vitx.cli._options import Backend, ModelOrFile, Weights, console, new_run, open_model


def main(
    model: ModelOrFile,
    source: Annotated[
        str,
        typer.Argument(
            help="fashion_mnist (the shipped sample), a folder with one sub-folder a class, "
            "tfds:NAME, or an .npz with x_train, y_train, x_test, y_test."
        ),
    ],
    weights: Weights = None,
    recipe: Annotated[
        str, typer.Option(help=f"Recipe, one of: {', '.join(training.list_recipes())}.")
    ] = "finetune",
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="Side of the images in pixels. Default: the model's or checkpoint's."),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"] | None,
        typer.Option(help="Precision to compute in. Default: the model's."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the results. Default: a new one under runs/."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an image that can't be decoded.")
    ] = False,
    backend: Backend = None,
) -> None:
    """Train or fine-tune a model; keep the best epoch and a history."""
    keras.utils.set_random_seed(seed)
    images = data.open_source(source, strict=strict, seed=seed)
    arguments = {}
    if not model.endswith(".keras"):
        arguments["classes"] = len(images.class_names)
        if image_size is not None:
            arguments["input_shape"] = (image_size, image_size, 3)
    network = open_model(model, weights, **arguments)
    output = output or new_run(network.name)
    training.fit(
        network,
        images,
        recipe,
        output=output,
        precision=precision,
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    console.print(f"Best model, history and settings: [bold]{output}[/bold]", highlight=False)
