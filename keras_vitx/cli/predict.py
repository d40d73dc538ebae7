"""`keras-vitx predict`: what is on these images?"""

from pathlib import Path
from typing import Annotated

import keras
import typer
from rich.table import Table

from keras_vitx import data, models
from keras_vitx import weights as checkpoints
from keras_vitx.cli._options import Backend, ModelOrFile, Weights, console, open_model


def main(
    model: ModelOrFile,
    images: Annotated[list[Path], typer.Argument(help="Image files.", metavar="IMAGE...")],
    weights: Weights = None,
    top: Annotated[int, typer.Option(help="Number of classes to show.", min=1)] = 5,
    backend: Backend = None,
) -> None:
    """Classify images; print the most probable classes of each as a table."""
    pictures = [data.decode_image(path) for path in images]
    if model in models.MODELS and weights is None:
        weights = _only_sensible_weights(model)
    network = open_model(model, weights)
    outputs = network.predict(data.preprocess_input(pictures, network), verbose=0)
    if not network.class_names and network.output_shape[-1] != 1000:
        network.class_names = [f"class {index}" for index in range(network.output_shape[-1])]
    decoded = data.decode_predictions(_probabilities(network, outputs), top, network)
    table = Table("image", "class", "probability")
    for path, best in zip(images, decoded, strict=True):
        for rank, (_, name, probability) in enumerate(best):
            table.add_row(str(path) if rank == 0 else "", name, f"{probability:.1%}")
        table.add_section()
    console.print(table)


def _only_sensible_weights(model: str) -> str:
    """Return the weights to take where none were named: never random ones."""
    entries = checkpoints.checkpoints_of(model)
    if not entries:
        raise ValueError(f"No checkpoint of {model} is known: give `--weights`.")
    return "imagenet" if any(entry.classes == 1000 for entry in entries) else entries[0].name


def _probabilities(network, outputs):
    activation = getattr(network.layers[-1], "activation", None)
    if keras.activations.get(activation) is keras.activations.softmax:
        return outputs
    return keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
