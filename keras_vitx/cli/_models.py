"""Open the model given on the command line, and read its preprocessing and class names."""

import logging
from pathlib import Path
from typing import Any

import keras_vitx as kv
from keras_vitx.text import nearest

log = logging.getLogger(__name__)


def is_size(model: str) -> bool:
    """Return whether `model` is the name of a size, which has no weights of its own."""
    return model in kv.models.MODELS


def open_model(model: str, weights: str | None = None, **arguments: Any):
    """Return a model by the name of a size, or load it from a file, folder or repository.

    Args:
        model: The argument of the command line.
        weights: Weights of a size; None and "none" are random ones.
        **arguments: Arguments of a size, such as `classes`.

    Raises:
        ValueError: if there is no such model, it can't be read, or weights are given
            for a model that has its own.
        OSError: if a file can't be read.
    """
    if is_size(model):
        weights = None if weights == "none" else weights
        return kv.create_model(model, weights=weights, **arguments)
    saved = model.startswith("hf://") or Path(model).is_dir()
    if not saved and not model.endswith(".keras"):
        raise ValueError(
            f"{model!r} is not a size, a .keras file or a folder. "
            f"{nearest(model, kv.models.MODELS)}"
        )
    if not saved and not Path(model).is_file():
        raise ValueError(f"There is no file {model!r}.")
    if weights is not None:
        raise ValueError(f"`--weights` applies to a size; {model!r} has its own weights.")
    return kv.load(model)


def only_sensible_weights(model: str) -> str:
    """Return the default weights of a size: the ImageNet checkpoint, else its first one.

    Raises:
        ValueError: if the size has no checkpoint; random weights would make no sense.
    """
    entries = kv.weights.checkpoints_of(model)
    if not entries:
        raise ValueError(f"No checkpoint of {model} is known: give `--weights`.")
    return "imagenet" if any(entry.dataset == "imagenet" for entry in entries) else entries[0].name


def class_names_of(network) -> list[str] | None:
    """Return the class names of a model, or of the keras_vitx model that is its last layer."""
    for layer in (network, network.layers[-1]):
        if getattr(layer, "class_names", None):
            return list(layer.class_names)
    return None


def preprocessing_of(network):
    """Return the `Preprocessing` of a model's images, or None if it has no record of it.

    A plain Keras model whose first layer is a keras_vitx model has the preprocessing of
    that model. A model with an `ImagePreprocessing` takes pixels in 0..255.
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
    """Return the `Preprocessing` that keeps pixels in 0..255."""
    return kv.Preprocessing(mean=[0] * channels, std=[1 / 255] * channels)
