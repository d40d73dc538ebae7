"""`keras-vitx evaluate`: loss and accuracy of a model on labelled images."""

from typing import Annotated, Literal

import typer

import keras_vitx as kv
from keras_vitx.cli._models import (
    class_names_of,
    is_size,
    only_sensible_weights,
    open_model,
    preprocessing_of,
)
from keras_vitx.cli._options import Backend, Json, ModelOrFile, Source, Weights
from keras_vitx.cli._output import show, show_json


def main(
    model: ModelOrFile,
    source: Source,
    weights: Weights = None,
    part: Annotated[
        Literal["test", "validation", "train"] | None,
        typer.Option(
            help="Part of the source. Default: the first of test, validation and train that it has."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 64,
    validation_split: Annotated[
        float, typer.Option(help="The value given to `train`, for the same validation images.")
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(help="The value given to `train`, for the same reason.", min=0)
    ] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an image that can't be decoded.")
    ] = False,
    json: Json = False,
    backend: Backend = None,
) -> None:
    """Measure loss and accuracy of a model on labelled images."""
    kv.keep_memory()
    if weights is None and is_size(model):
        weights = only_sensible_weights(model)
    network = open_model(model, weights)
    # A plain Keras model has neither attribute.
    if getattr(network, "preprocessing", None) is None:
        network.preprocessing = preprocessing_of(network)
    if getattr(network, "class_names", None) is None:
        network.class_names = class_names_of(network)
    measures = kv.evaluate(
        network,
        source,
        part,
        batch_size=batch_size,
        validation_split=validation_split,
        seed=seed,
        strict=strict,
    )
    if json:
        show_json(measures)
    else:
        formats = {name: "{:.4f}".format for name, v in measures.items() if isinstance(v, float)}
        show([measures], formats=formats)
