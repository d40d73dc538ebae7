"""The options of an export, and the graph that they define."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.data.predictions import class_names
from keras_vitx.export.formats import FORMATS, table
from keras_vitx.export.formats.base import HALF_DTYPES, Format, Graph
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.outputs import outputs_of

OUTPUTS = ("probabilities", "logits")


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
    """Check the arguments of `export`, and return the graph to write, not fused."""
    rule = "`preprocessing` must be True, False, or the (height, width) of the pixels."
    check(isinstance(preprocessing, bool) or _is_size(preprocessing), rule, preprocessing)
    check(outputs in (None, *OUTPUTS), f"`outputs` must be None or one of {OUTPUTS}.", outputs)
    rule = "`serving` must be True, False, or the number of classes to return."
    check(isinstance(serving, bool) or (isinstance(serving, int) and serving > 0), rule, serving)
    if serving is not False:
        required = ("saved_model", "probabilities", "channels_last")
        options = (format.name, outputs, data_format)
        check(options == required, f"`serving` must be False but for {required}.", options)
    rule = "`data_format` must be 'channels_last' or 'channels_first'."
    check(data_format in ("channels_last", "channels_first"), rule, data_format)
    check(
        precision is None or precision in format.precisions,
        f"`precision` must be None or one of the format's:\n{table()}\n",
        (format.name, precision),
    )
    half = [each.name for each in FORMATS.values() if each.half_products]
    check(
        compute_dtype is None or (format.name in half and compute_dtype in HALF_DTYPES),
        f"`compute_dtype` must be None, or one of {tuple(HALF_DTYPES)} for the formats {half}.",
        (format.name, compute_dtype),
    )
    rule = f"`precision` must be None with compute_dtype={compute_dtype!r}."
    check(not compute_dtype or precision in (None, compute_dtype), rule, precision)
    check(
        all(map(_is_size, image_sizes))
        and (not image_sizes or (format.name == "saved_model" and not preprocessing)),
        "`image_sizes` must be (height, width) pairs, for a SavedModel without preprocessing.",
        image_sizes,
    )
    check_model(model)
    check_quantization(model, format, compute_dtype)
    network = with_outputs(model, outputs)
    names = output_names(network)
    is_classifier = len(names) == 1 and names[0] in OUTPUTS
    classes = class_names(model, network.output_shape[-1]) if is_classifier else ()
    layer, size = None, (None, None)
    if preprocessing is not False:
        layer = ImagePreprocessing.of(model)
        if preprocessing is not True:
            size = tuple(preprocessing)
        elif not format.any_size:
            size = _uncropped(layer)
    networks = {"serve": network}
    for height, width in image_sizes:
        check(hasattr(network, "at_size"), "`image_sizes` needs a model of keras_vitx.", network)
        networks[f"serve_{height}x{width}"] = network.at_size((height, width))
    top = len(classes) if serving is True else min(int(serving), len(classes))
    arguments = (data_format, precision, compute_dtype, classes, top)
    return Graph(networks, names, layer, size, *arguments)


def check(holds: bool, rule: str, received: Any) -> None:
    """Raise a ValueError with the rule, "`x` must be ...", and `received`, unless it holds."""
    if not holds:
        raise ValueError(f"{rule} Received: {received!r}.")


def _is_size(size):
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    return is_pair and all(isinstance(side, int) and side > 0 for side in size)


def check_model(model: keras.Model) -> None:
    """Check that `model` takes one batch of images."""
    is_built = isinstance(model, keras.Model) and model.built
    inputs = getattr(model, "inputs", None) if is_built else None
    shapes = [tuple(tensor.shape) for tensor in inputs or ()]
    check(
        len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][3] is not None,
        "`model` must be a built Keras model of images, (batch, height, width, channels).",
        shapes or model,
    )


def check_quantization(model: keras.Model, format: Format, compute_dtype: str | None) -> None:
    """Check that the format's converter writes the layers that Keras has quantized, if any."""
    modes = {each.quantization_mode for each in sublayers(model)} - {None}
    writers = [name for name, each in FORMATS.items() if modes <= set(each.quantized)]
    check(
        format.name in writers,
        f"`model` must not be quantized to {', '.join(sorted(modes))} for the format "
        f"{format.name!r}, whose converter can't write it. Export it before `model.quantize`, and "
        f"quantize the file by the tools of its runtime; or choose one of the formats {writers}.",
        model.name,
    )
    check(
        not (modes and compute_dtype),
        f"`compute_dtype` must be None for a model quantized to {', '.join(sorted(modes))}.",
        compute_dtype,
    )


def output_names(model: keras.Model) -> tuple[str, ...]:
    """Return the names of the outputs: the `_kind` of a single one, else keys or layer names."""
    outputs = getattr(model, "output", None)
    if isinstance(outputs, dict):
        # Keras flattens them in this order.
        return tuple(sorted(outputs))
    names = tuple(model.output_names)
    if len(names) == 1:
        return (_kind(model),)
    is_one_layer = len(set(names)) < len(names)
    return tuple(f"output_{index}" for index in range(len(names))) if is_one_layer else names


def _kind(model):
    """Return "probabilities" or "logits" for a classifier, "features" for another model."""
    if type(_last(model)).__name__ in ("Softmax", "Sigmoid"):
        return "probabilities"
    try:
        return "logits" if outputs_of(model).from_logits else "probabilities"
    except ValueError:
        return "features"


def _last(model):
    steps = getattr(model, "operations", None) or model.layers
    return steps[-1]


def with_outputs(model: keras.Model, outputs: str | None) -> keras.Model:
    """Return a model whose output is probabilities or logits; the same model for None."""
    kind = _kind(model) if len(model.outputs) == 1 else "features"
    if outputs in (None, kind):
        return model
    head = _last(model)
    check(
        kind != "features" and hasattr(head, "activation"),
        f"`model` must end in a classifier for outputs={outputs!r}.",
        head,
    )
    activation = "softmax" if outputs == "probabilities" else "linear"
    if hasattr(model, "token_layout"):
        config = model.get_config()
        config["layers"][-1]["config"]["activation"] = activation
        result = copy = type(model).from_config(config)
        head = model
    else:
        copy = type(head).from_config({**head.get_config(), "activation": activation})
        result = keras.Model(model.input, copy(head.input), name=model.name)
    for target, source in zip(copy.weights, head.weights, strict=True):
        target.assign(ops.convert_to_numpy(source))
    return result


def _uncropped(layer):
    """Return the size of the images that `layer` crops without resizing."""
    return tuple(round(side / layer.crop_ratio) for side in layer.size)


def in_layout(images: np.ndarray, data_format: str) -> np.ndarray:
    """Return images `(batch, height, width, channels)` in the data format of a file."""
    is_first = data_format == "channels_first"
    return np.ascontiguousarray(np.moveaxis(images, -1, 1)) if is_first else images


def as_input(images: Any, model: keras.Model, rule: str, minimum: int = 1) -> np.ndarray:
    """Return at least `minimum` images in the dtype of a model's input."""
    images = ops.convert_to_numpy(images)
    shape = model.inputs[0].shape[1:]
    fits = images.ndim == 4 and len(images) >= minimum
    fits = fits and all(a in (None, b) for a, b in zip(shape, images.shape[1:], strict=True))
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    check(fits, f"{rule} ({minimum} or more, {sides}).", images.shape)
    dtype = input_dtype(model)
    is_exact = dtype == "float32" or np.array_equal(images.astype(dtype), images)
    check(is_exact, f"{rule} of {dtype}, which the model takes.", images.dtype.name)
    return images.astype(dtype)


def input_dtype(model: keras.Model) -> str:
    """Return the dtype of arrays for a model: that of its input, float32 for half precision."""
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float32" if "float" in dtype else dtype
