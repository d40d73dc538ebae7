"""Opening the model that a verb is asked for, and what it says of its images and classes."""

import logging
from pathlib import Path
from typing import Any

import keras_vitx as kv
from keras_vitx.text import nearest

log = logging.getLogger(__name__)


def is_size(model: str) -> bool:
    """Tell whether `model` names a size, which has no weights of its own."""
    return model in kv.models.MODELS


def open_model(model: str, weights: str | None = None, **arguments: Any):
    """Return the size `model`, or the model that the file, folder or repository `model` holds.

    Args:
        model: What the command line has.
        weights: Of a size; None and "none" give random ones.
        **arguments: Of a size, such as `classes`.

    Raises:
        ValueError: when there is no such model, it can't be read, or weights are given
            beside a model that has its own.
        OSError: when a file can't be read.
    """
    if is_size(model):
        weights = None if weights == "none" else weights
        return kv.create_model(model, weights=weights, **arguments)
    saved = model.startswith("hf://") or Path(model).is_dir()
    if not saved and not model.endswith(".keras"):
        raise ValueError(
            f"{model!r} is neither a size nor a .keras file nor a folder. "
            f"{nearest(model, kv.models.MODELS)}"
        )
    if not saved and not Path(model).is_file():
        raise ValueError(f"There is no file {model!r}.")
    if weights is not None:
        raise ValueError(f"`--weights` goes with a size; {model!r} has its own weights.")
    return kv.load(model)


def only_sensible_weights(model: str) -> str:
    """Return the weights to take where none were named: never random ones."""
    entries = kv.weights.checkpoints_of(model)
    if not entries:
        raise ValueError(f"No checkpoint of {model} is known: give `--weights`.")
    return "imagenet" if any(entry.classes == 1000 for entry in entries) else entries[0].name


def class_names_of(network) -> list[str] | None:
    """Return the names of a model's classes, or those of the model of keras_vitx it ends in."""
    for layer in (network, network.layers[-1]):
        if getattr(layer, "class_names", None):
            return list(layer.class_names)
    return None


def preprocessing_of(network):
    """Return the `Preprocessing` of a model's images; None where it has no record of it.

    A plain Keras model that starts with one of keras_vitx has that one's. One that holds an
    `ImagePreprocessing` takes pixels in 0..255 as they are.
    """
    import keras

    layers = [each for each in network.layers if not isinstance(each, keras.layers.InputLayer)]
    for layer in (network, layers[0]):
        if getattr(layer, "preprocessing", None):
            return layer.preprocessing
    if any(isinstance(layer, kv.layers.ImagePreprocessing) for layer in layers):
        return pixels(network.input_shape[-1])
    return None


def pixels(channels: int):
    """Return the `Preprocessing` that leaves pixels in 0..255."""
    return kv.Preprocessing(mean=[0] * channels, std=[1 / 255] * channels)
