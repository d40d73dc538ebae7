"""The options of an export, and the graph that is written with them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx import data
from keras_vitx.classifier import outputs_of
from keras_vitx.data.predictions import class_names
from keras_vitx.data.preprocessing import (
    decode_image,
    fit_to_model,
    normalize,
    resize_and_crop,
    with_channels,
)
from keras_vitx.data.sources.folders import image_files
from keras_vitx.export.formats import FORMATS, table
from keras_vitx.export.formats.base import Format, Graph
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.preprocessing import ModelInput

KINDS = ("probabilities", "logits")
STATIC = "int8-static"

CALIBRATION_IMAGES = 256
"""Number of images taken from a folder or a source, evenly spaced."""


def prepare(
    model: keras.Model,
    format: Format,
    preprocessing: bool | tuple[int, int] = False,
    outputs: str | None = None,
    serving: bool | int = False,
    precision: str | None = None,
    compute_dtype: str | None = None,
    data_format: str = "channels_last",
    image_sizes: Sequence[tuple[int, int]] = (),
) -> Graph:
    """Return the graph that is to be written, not fused, by the arguments of `export`."""
    check_model(model)
    _check_options(format, preprocessing, outputs, serving, data_format, image_sizes)
    _check_precision(format, precision, compute_dtype)
    network = with_outputs(model, outputs)
    names = output_names(network)
    classes = ()
    if len(names) == 1 and names[0] in KINDS:
        classes = class_names(model, network.output_shape[-1])
    before, size = None, (None, None)
    if preprocessing is not False:
        before = ImagePreprocessing.of(model)
        if preprocessing is not True:
            size = tuple(preprocessing)
        elif not format.any_size:
            size = _uncropped(before)
    networks = {"serve": network}
    for height, width in image_sizes:
        if not hasattr(network, "at_size"):
            raise ValueError(f"image_sizes needs a model of keras_vitx, not {network.name!r}.")
        networks[f"serve_{height}x{width}"] = network.at_size((height, width))
    return Graph(
        networks,
        names,
        before,
        size,
        data_format,
        precision or compute_dtype,
        compute_dtype,
        classes,
        top=len(classes) if serving is True else min(int(serving), len(classes)),
    )


def check_model(model: keras.Model) -> None:
    """Check that `model` takes one batch of images."""
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"model should be a built Keras model, not {model!r}.")
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or []]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][3] is None:
        raise ValueError(
            "model should take one batch of images, (batch, height, width, channels); "
            f"its inputs are {shapes or 'unknown'}."
        )


def _check_options(format, preprocessing, outputs, serving, data_format, image_sizes):
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(
            f"`data_format` must be 'channels_last' or 'channels_first'. Received: {data_format!r}."
        )
    if not isinstance(preprocessing, bool) and not _is_size(preprocessing):
        raise ValueError(
            "preprocessing should be True, False, or the (height, width) of the pixels, "
            f"not {preprocessing!r}."
        )
    if image_sizes and (format.name != "saved_model" or preprocessing):
        raise ValueError(
            "image_sizes should be empty except for a SavedModel without preprocessing, which "
            f"has a signature per size; received {image_sizes!r} for the format {format.name!r}."
        )
    if not all(map(_is_size, image_sizes)):
        raise ValueError(f"image_sizes should be (height, width) pairs, not {image_sizes!r}.")
    if serving is False:
        return
    if serving is not True and not (isinstance(serving, int) and serving > 0):
        raise ValueError(
            f"serving should be True, False, or the number of classes to return, not {serving!r}."
        )
    if format.name != "saved_model":
        raise ValueError(f"serving needs format='saved_model', not {format.name!r}.")
    if outputs not in (None, "probabilities") or data_format != "channels_last":
        raise ValueError(
            "serving returns probabilities and takes image files. Received: "
            f"outputs={outputs!r}, data_format={data_format!r}."
        )


def _is_size(size):
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    return is_pair and all(isinstance(side, int) and side > 0 for side in size)


def _check_precision(format, precision, compute_dtype):
    if precision is not None and precision not in format.precisions:
        raise ValueError(
            f"precision: {precision!r} is not available for the format {format.name!r}. "
            f"The precisions are:\n{table()}\n"
            'A model that `model.quantize("int8")` has rounded is written as it is.'
        )
    if compute_dtype is not None and compute_dtype not in format.computes:
        known = {each.name: each.computes for each in FORMATS.values() if each.computes}
        raise ValueError(
            f"`compute_dtype` must be None or, by format, one of {known}. Received: "
            f"{compute_dtype!r} for the format {format.name!r}."
        )
    if compute_dtype and precision not in (None, compute_dtype):
        raise ValueError(
            f"`precision` must be None or {compute_dtype!r} with compute_dtype={compute_dtype!r}. "
            f"Received: {precision!r}."
        )


def output_names(model: keras.Model) -> tuple[str, ...]:
    """Return the `_kind` of one output; of several, their keys or the names of their layers."""
    outputs = getattr(model, "output", None)
    if isinstance(outputs, dict):
        # In the order in which Keras flattens them.
        return tuple(sorted(outputs))
    if len(model.outputs) == 1:
        return (_kind(model),)
    names = list(model.output_names)
    return tuple(
        f"{name}_{names[:index].count(name)}" if name in names[:index] else name
        for index, name in enumerate(names)
    )


def _kind(model):
    """Return "probabilities" or "logits" for a classifier, "features" for another model."""
    if type(_last(model)).__name__ in ("Softmax", "Sigmoid"):
        return "probabilities"
    try:
        return "logits" if outputs_of(model).from_logits else "probabilities"
    except ValueError:
        return "features"


def _last(model):
    return (getattr(model, "operations", None) or model.layers)[-1]


def with_outputs(model: keras.Model, outputs: str | None) -> keras.Model:
    """Return a model whose one output is probabilities or logits; the same one for None."""
    if outputs is None:
        return model
    if outputs not in KINDS:
        raise ValueError(f"outputs should be None, 'probabilities' or 'logits', not {outputs!r}.")
    kind = _kind(model) if len(model.outputs) == 1 else "features"
    if kind == outputs:
        return model
    activation = "softmax" if outputs == "probabilities" else "linear"
    steps = getattr(model, "steps", None)
    head = steps[-1] if steps else _last(model)
    if kind == "features" or not hasattr(head, "activation"):
        raise ValueError(
            f"outputs={outputs!r} needs a model that ends in a classifier; {model.name!r} ends in "
            f"{getattr(head, 'name', head)!r}."
        )
    if steps:
        config = model.get_config()
        config["layers"][-1]["config"]["activation"] = activation
        result = changed = type(model).from_config(config)
        head = model
    else:
        changed = type(head).from_config({**head.get_config(), "activation": activation})
        result = keras.models.clone_model(
            keras.Model(model.inputs, model.outputs, name=model.name),
            clone_function=lambda layer: changed if layer is head else layer,
        )
    for target, source in zip(changed.weights, head.weights, strict=True):
        target.assign(ops.convert_to_numpy(source))
    return result


def check_calibration(precision: str | None, calibration: Any) -> None:
    """Check that there are images to calibrate with, if and only if the precision needs them."""
    if precision == STATIC and calibration is None:
        raise ValueError(
            f"precision={STATIC!r} needs calibration, a folder of images like those that the "
            "model will see, or an array of them."
        )
    if precision != STATIC and calibration is not None:
        raise ValueError(f"calibration is for precision={STATIC!r}, not {precision!r}.")


def calibration_images(graph: Graph, source: Any) -> np.ndarray:
    """Return images as the file takes them: an array as it is, or 256 of a source, preprocessed."""
    if not isinstance(source, (str, os.PathLike)):
        return as_input(source, graph.model, "calibration should be a folder or an array")
    folder = Path(source).expanduser()
    images = image_files(folder) if folder.is_dir() else data.load_dataset(source).train.images
    if not len(images):
        raise ValueError(f"calibration: there is no image in {str(source)!r}.")
    chosen = np.unique(np.linspace(0, len(images) - 1, CALIBRATION_IMAGES).astype(int))
    spec = ModelInput.of(graph.networks["serve"])
    pixels = np.stack([_fitted(images[index], graph, spec) for index in chosen])
    return in_layout(pixels, graph.data_format)


def _fitted(image, graph, spec):
    """Return an image preprocessed for the network, or as pixels that the file preprocesses."""
    if isinstance(image, Path):
        image = decode_image(image)
    if graph.before is None:
        ready = fit_to_model(image, spec, spec.preprocessing.crop_ratio)
        return normalize(ready, spec.preprocessing)
    size = _uncropped(graph.before) if None in graph.size else graph.size
    return resize_and_crop(with_channels(image, spec.channels), size)


def _uncropped(before):
    """Return the size of the images that are cropped without being resized."""
    return tuple(round(side / before.crop_ratio) for side in before.size)


def in_layout(images: np.ndarray, data_format: str) -> np.ndarray:
    """Return images `(batch, height, width, channels)` in the data format of a file."""
    is_first = data_format == "channels_first"
    return np.ascontiguousarray(np.moveaxis(images, -1, 1)) if is_first else images


def as_input(
    images: Any, model: keras.Model, expected: str, least: int = 1, exact: bool = False
) -> np.ndarray:
    """Return at least `least` images, or `exact`ly as many, in the dtype of a model's input."""
    images = ops.convert_to_numpy(images)
    _, *shape = model.inputs[0].shape
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = input_dtype(model)
    fits = images.ndim == 4 and all(
        side in (None, given) for side, given in zip(shape, images.shape[1:], strict=True)
    )
    if not fits or len(images) < least or (exact and len(images) > least):
        sides = ", ".join("any" if side is None else str(side) for side in shape)
        count = least if exact else f"{least} or more"
        raise ValueError(f"{expected} ({count}, {sides}), not {images.shape}.")
    if dtype != "float32" and not np.array_equal(images.astype(dtype), images):
        raise ValueError(
            f"{expected.split()[0]} should hold values of {dtype}, the dtype that the model takes."
        )
    return images.astype(dtype)


def input_dtype(model: keras.Model) -> str:
    """Return the dtype of arrays for a model: that of its input, float32 for half precision."""
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float32" if "float" in dtype else dtype
