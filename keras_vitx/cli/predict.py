"""`keras-vitx predict`: the most probable classes of images."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import typer

import keras_vitx as kv
from keras_vitx.cli._models import (
    class_names_of,
    is_size,
    only_sensible_weights,
    open_model,
    pixels,
    preprocessing_of,
)
from keras_vitx.cli._options import Backend, Csv, Json, ModelOrFile, Weights
from keras_vitx.cli._output import check_form, progress, show, show_json

log = logging.getLogger(__name__)


def main(
    model: ModelOrFile,
    images: Annotated[list[Path], typer.Argument(help="Image files.", metavar="IMAGE")],
    weights: Weights = None,
    top: Annotated[int, typer.Option(help="Number of classes to show.", min=1)] = 5,
    batch_size: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 32,
    json: Json = False,
    csv: Csv = False,
    backend: Backend = None,
) -> None:
    """Classify images and print the most probable classes of each.

    If an image can't be read, it is reported, the others are still classified, and the
    exit code is 1.
    """
    from keras_vitx.classifier import outputs_of

    check_form(json, csv)
    kv.keep_memory()
    if weights is None and is_size(model):
        weights = only_sensible_weights(model)
    network = open_model(model, weights)
    outputs = outputs_of(network)
    named = SimpleNamespace(class_names=_names(network, outputs.classes))

    results, errors = [], {}
    with progress(len(images), "Images") as advance:
        for batch in _batches(network, images, batch_size):
            for path, error in batch.errors.items():
                errors[path] = str(error)
                typer.secho(f"Error: {error}", fg="red", err=True)
            if batch.paths:
                inputs = _as_input(batch.images, network.inputs[0].dtype)
                probabilities = outputs.probabilities(network.predict_on_batch(inputs))
                best = kv.data.decode_predictions(probabilities, top, named)
                results += zip(batch.paths, best, strict=True)
            advance(len(batch.paths) + len(batch.errors))
    if json:
        show_json(_objects(results, errors))
    elif results:
        rows = [
            {"image": str(path), "class": name, "probability": probability}
            for path, best in results
            for _, name, probability in best
        ]
        show(rows, as_csv=csv, grouped="image", formats={"probability": "{:.1%}".format})
    if errors:
        raise typer.Exit(1)


def _names(network, classes: int) -> list[str] | None:
    """Return the class names; None stands for those of ImageNet."""
    names = class_names_of(network)
    if names is None and classes != 1000:
        names = [f"class {index}" for index in range(classes)]
    return names


def _batches(network, paths: Sequence[Path], batch_size: int) -> Iterator:
    """Yield `data.FileBatch`es of images preprocessed for the network.

    Raises:
        ValueError: if the input of the network is not images.
    """
    from keras_vitx.data.preprocessing import normalize
    from keras_vitx.preprocessing import ModelInput

    shape = network.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[-1] not in (1, 3):
        raise ValueError(
            "The model's input must be images (batch, height, width, channels) with 1 or 3 "
            f"channels. Received: a model with input {shape}."
        )
    preprocessing = preprocessing_of(network)
    if preprocessing is None:
        log.warning("The model has no record of its preprocessing; it receives pixels in 0..255.")
        preprocessing = pixels(shape[-1])
    if None not in shape[1:]:
        facts = ModelInput(shape, preprocessing)
        yield from kv.data.batches_of_files(paths, facts, batch_size)
        return
    # The model takes images of any size: each is a batch of its own.
    for path in paths:
        try:
            image = kv.data.decode_image(path, shape[-1])[None].astype("float32")
            yield kv.data.FileBatch([path], normalize(image, preprocessing), {})
        except OSError as error:
            yield kv.data.FileBatch([], np.empty(0), {path: error})


def _as_input(images: np.ndarray, dtype: str) -> np.ndarray:
    return np.rint(images).astype(dtype) if "int" in dtype else images


def _objects(results, errors) -> list[dict]:
    classified = [
        {
            "image": str(path),
            "classes": [{"class": name, "probability": value} for _, name, value in best],
        }
        for path, best in results
    ]
    return classified + [{"image": str(path), "error": error} for path, error in errors.items()]
