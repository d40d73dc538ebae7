"""The model that is written, made from the one that is given, and the options of that."""

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx import data
from keras_vitx.data.predictions import class_names
from keras_vitx.data.preprocessing import (
    decode_image,
    fit_to_model,
    normalize,
    resize_and_crop,
    with_channels,
)
from keras_vitx.data.sources.folders import image_files
from keras_vitx.export.folding import fold_before
from keras_vitx.export.formats import FORMATS, table
from keras_vitx.export.formats.base import Format
from keras_vitx.export.fuse import fuse
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.layers.heads import SeveralHeads
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import needs_extra

KINDS = ("probabilities", "logits")


@dataclass(frozen=True)
class Prepared:
    """The parts of what is written: preprocessing, then the network.

    Attributes:
        network: The network, with the wanted outputs.
        before: The layer before it that takes pixels, if any.
        size: Height and width of the pixels.
        outputs: Names of the outputs.
        data_format: `"channels_last"`, or `"channels_first"` if images are transposed first.
    """

    network: keras.Model
    before: keras.layers.Layer | None
    size: tuple[int | None, int | None]
    outputs: tuple[str, ...]
    data_format: str = "channels_last"

    def joined(self) -> keras.Model:
        """Return one model of the parts."""
        network, before, layers = self.network, self.before, []
        (spec,) = network.inputs
        shape, dtype = spec.shape, spec.dtype
        if before is not None:
            shape, dtype = (None, *self.size, len(before.mean)), "uint8"
            layers.append(before)
        if self.data_format == "channels_first":
            shape = (shape[0], shape[3], *shape[1:3])
            layers.insert(0, keras.layers.Permute((2, 3, 1)))
        if not layers:
            return network
        x = images = keras.Input(batch_shape=shape, dtype=dtype, name="images")
        for layer in (*layers, network):
            x = layer(x)
        return keras.Model(images, x, name=network.name)


def prepare(
    model: keras.Model,
    preprocessing: bool | tuple[int, int],
    outputs: str | None,
    any_size: bool,
    data_format: str = "channels_last",
) -> Prepared:
    """Return the parts of the model that is to be written.

    Args:
        model: A built model of one batch of images.
        preprocessing: Whether the file takes pixels; `(height, width)` gives their size.
        outputs: `"probabilities"`, `"logits"` or None, the outputs as they are.
        any_size: Whether pixels of any size can be taken if none is given.
        data_format: Order of the file's input, `"channels_last"` or `"channels_first"`.

    Raises:
        ValueError: if the outputs can't be changed, or the model's preprocessing is unknown.
    """
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(
            f"`data_format` must be 'channels_last' or 'channels_first'. Received: {data_format!r}."
        )
    network = with_outputs(model, outputs)
    names = output_names(network)
    if preprocessing is False:
        return Prepared(network, None, (None, None), names, data_format)
    before = ImagePreprocessing.of(model)
    size = preprocessing
    if preprocessing is True:
        sides = (round(side / before.crop_ratio) for side in before.size)
        size = (None, None) if any_size else tuple(sides)
    return Prepared(network, before, size, names, data_format)


def check_arguments(
    format: Format,
    preprocessing: Any,
    outputs: str | None,
    serving: Any,
    data_format: str,
    imports: Any,
) -> None:
    """Check the arguments of `export` that need no model.

    Raises:
        ValueError: if one is invalid, or does not fit the others.
    """
    if not isinstance(preprocessing, bool):
        expected = "True, False, or the (height, width) of the pixels"
        check_size(preprocessing, f"preprocessing should be {expected}")
    if isinstance(imports, str) or not all(isinstance(name, str) for name in imports):
        raise ValueError(f'imports should be module names such as ("my_module",), not {imports!r}.')
    if serving is False:
        return
    if serving is not True and not (isinstance(serving, int) and serving > 0):
        raise ValueError(
            f"serving should be True, False, or the number of classes to return, not {serving!r}."
        )
    if format.name != "saved_model":
        raise ValueError(f"serving needs format='saved_model', not {format.name!r}.")
    if outputs not in (None, "probabilities"):
        raise ValueError(f"serving returns probabilities; outputs={outputs!r} contradicts that.")
    if data_format != "channels_last":
        raise ValueError(
            f"serving takes image files; data_format={data_format!r} contradicts that."
        )


def check_size(size: Any, expected: str) -> None:
    """Check that a size is a height and a width; if not, the error begins with `expected`."""
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in size):
        raise ValueError(f"{expected}, not {size!r}.")


def fused(parts: Prepared) -> tuple[Prepared, str | None]:
    """Return the parts fused, or as they are and the reason why they can't be fused."""
    try:
        network = fuse(parts.network)
    except ValueError as error:
        return parts, str(error)
    before = parts.before
    if before is not None:
        before = fold_before(before, network)
    return replace(parts, network=network, before=before), None


def output_names(model: keras.Model) -> tuple[str, ...]:
    """Return the names of a model's outputs in an exported file.

    One output is named by what it is: `probabilities`, `logits`, or else `features`. The
    outputs of a model with several have their keys, if it returns a dictionary, or the names
    of its output layers.
    """
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


def _last(model: keras.Model) -> keras.Operation:
    """Return the layer or the operation that returns the output of `model`."""
    return keras.Model(model.inputs, model.outputs).operations[-1]


def _kind(model: keras.Model) -> str:
    last = _last(model)
    if isinstance(last, keras.Model) and getattr(last, "outputs", None):
        return _kind(last)
    if isinstance(last, keras.layers.Softmax) or type(last).__name__ in ("Softmax", "Sigmoid"):
        return "probabilities"
    activation = getattr(last, "activation", None)
    if isinstance(last, (keras.layers.Dense, SeveralHeads, keras.layers.Activation)):
        activation = keras.activations.get(activation)
        if activation in (keras.activations.softmax, keras.activations.sigmoid):
            return "probabilities"
        is_head = not isinstance(last, keras.layers.Activation)
        return "logits" if is_head and activation is keras.activations.linear else "features"
    return "features"


def with_outputs(model: keras.Model, outputs: str | None) -> keras.Model:
    """Return a model whose one output is probabilities or logits; the same one for None.

    Raises:
        ValueError: if `outputs` is unknown, or the model has no classifier that can give them.
    """
    if outputs is None:
        return model
    if outputs not in KINDS:
        raise ValueError(f"outputs should be None, 'probabilities' or 'logits', not {outputs!r}.")
    kind = _kind(model) if len(model.outputs) == 1 else "features"
    if kind == outputs:
        return model
    activation = "softmax" if outputs == "probabilities" else "linear"
    head = model.steps[-1] if hasattr(model, "steps") else _last(model)
    if kind not in KINDS or not hasattr(head, "activation"):
        raise ValueError(
            f"outputs={outputs!r} needs a model that ends in a classifier; {model.name!r} ends in "
            f"{getattr(head, 'name', head)!r}."
        )
    if hasattr(model, "steps"):
        return _with_activation(model, activation)
    changed = _copied(head, activation)
    result = keras.models.clone_model(
        keras.Model(model.inputs, model.outputs, name=model.name),
        clone_function=lambda layer: changed if layer is head else layer,
    )
    _assign(changed.weights, head.weights)
    return result


def _copied(head, activation):
    return type(head).from_config({**head.get_config(), "activation": activation})


def _with_activation(model, activation):
    """Return a `Chain` with the same weights and another activation of its head."""
    config = model.get_config()
    config["layers"][-1]["config"]["activation"] = activation
    changed = type(model).from_config(config)
    _assign(changed.weights, model.weights)
    return changed


def _assign(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        target.assign(ops.convert_to_numpy(source))


STATIC = "int8-static"


def check_precision(
    precision: str | None,
    format: Format,
    calibration: Any = None,
    compute_dtype: str | None = None,
) -> None:
    """Check that a format is written in a precision, and that it gets images if it needs them.

    Raises:
        ValueError: if not; the message has the table of all formats.
        ImportError: if the package that quantizes the format's files is not installed.
    """
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
    if precision == STATIC and calibration is None:
        raise ValueError(
            f"precision={STATIC!r} needs calibration, a folder of images like those that the "
            "model will see, or an array of them."
        )
    if precision != STATIC and calibration is not None:
        raise ValueError(f"calibration is for precision={STATIC!r}, not {precision!r}.")
    package = format.quantizer
    if precision and "int" in precision and package and not importlib.util.find_spec(package):
        what = f"{format.title} in {precision} needs {package}, which is not installed"
        raise ImportError(needs_extra(what, package))


def classes_of(model: keras.Model, parts: Prepared) -> tuple[str, ...]:
    """Return the names of a classifier's classes, and none for another model."""
    if len(parts.outputs) != 1 or parts.outputs[0] not in KINDS:
        return ()
    return class_names(model, parts.network.output_shape[-1])


CALIBRATION_IMAGES = 256
"""Number of images taken from a folder or a source, evenly spaced."""


def calibration_images(parts: Prepared, source: Any) -> np.ndarray:
    """Return images as the input of the file that is written.

    Args:
        parts: The model that is written.
        source: A folder of images, in sub-folders or not, the path of an .npz file with
            `x_train`, or another name that `data.load_dataset` takes: 256 of its (training) images,
            preprocessed for the model. Or an array, as the file takes it.

    Raises:
        ValueError: if there is no image, or the images of an array do not fit the model.
        OSError: if an image can't be decoded.
    """
    if not isinstance(source, (str, os.PathLike)):
        return as_input(source, parts.joined(), "calibration should be a folder or an array")
    folder = Path(source).expanduser()
    images = image_files(folder) if folder.is_dir() else data.load_dataset(source).train.images
    if not len(images):
        raise ValueError(f"calibration: there is no image in {str(source)!r}.")
    chosen = np.unique(np.linspace(0, len(images) - 1, CALIBRATION_IMAGES).astype(int))
    spec = ModelInput.of(parts.network)
    pixels = np.stack([_fitted(images[index], parts, spec) for index in chosen])
    is_first = parts.data_format == "channels_first"
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)) if is_first else pixels


def _fitted(image, parts, spec):
    if isinstance(image, Path):
        image = decode_image(image)
    if parts.before is None:
        return normalize(
            fit_to_model(image, spec, spec.preprocessing.crop_ratio), spec.preprocessing
        )
    # The file takes pixels; where of any size, of the size that needs the least resizing.
    sides = (round(side / parts.before.crop_ratio) for side in parts.before.size)
    size = tuple(parts.size) if None not in parts.size else tuple(sides)
    return resize_and_crop(with_channels(image, spec.channels), size)


def as_input(
    images: Any, model: keras.Model, expected: str, least: int = 1, exact: bool = False
) -> np.ndarray:
    """Return images in the dtype of a model's input, float32 for any of floating point.

    Args:
        images: The images.
        model: The model.
        expected: The beginning of the error.
        least: The smallest number of images.
        exact: Whether it is also the largest.

    Raises:
        ValueError: if the images do not fit the model.
    """
    images = ops.convert_to_numpy(images)
    _, *shape = model.inputs[0].shape
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = "float32" if "float" in dtype else dtype
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
