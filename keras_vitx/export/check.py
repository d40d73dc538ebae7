"""Comparison of an exported file with its model, in the file's own runtime."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from PIL import Image

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.checks import check
from keras_vitx.export.convert import run_file
from keras_vitx.export.formats import existing_format
from keras_vitx.export.graph import HALF_DTYPES, OUTPUTS, Graph, graph_of
from keras_vitx.export.record import read_record
from keras_vitx.keras_internals import sublayers
from keras_vitx.preprocessing import IMAGENET_INCEPTION, ModelInput

PHOTOGRAPHS = 8
"""Number of images of the shipped sample for a comparison."""

SIZES = ((96, 128), (160, 112))
"""Heights and widths of the images for models that take any size."""

TOLERANCE = 5e-5
"""Default tolerance, relative to the largest output, if all layers compute in float32. Rounding
alone moves file and model by up to 1.9e-5 each, possibly to opposite sides."""

TOLERANCE_ROUNDED = 5e-2
"""The same in half precision, or if a layer is quantized: rounding activations to int8 or float8
alone moves outputs by up to 2e-2."""


def verify(
    path: str | os.PathLike,
    model: keras.Model,
    images: Any = None,
    *,
    tolerance: float | None = None,
    trust: bool = False,
) -> float:
    r"""Compare an exported file with the model it was exported from.

    A new process, which can import neither Keras nor this package, opens the file in its own
    runtime on the CPU and runs one image and the whole batch. The difference is
    $\max|y_{file} - y| / \max|y|$, where $y$ is the output of `model`.

    Args:
        path: The file or directory. Its suffix determines the format, and the record beside it the
            options of the export (preprocessing inside, logits, weights in float16).
        model: The model.
        images: Images in the format of the file's input, `(n, height, width, channels)` with n at
            least 2. None means eight images of the shipped Fashion-MNIST sample, in the size and
            the preprocessing of the model, or in two sizes if it takes any; in pixels of 0..255 for
            an integer input and for a model with `ImagePreprocessing` or `keras.layers.Rescaling`.
        tolerance: Largest difference allowed. None means 5e-5, and 5e-2 if a layer or the stored
            weights have lower precision than float32, or a layer is quantized. A GPU that rounds
            products to TF32 needs a larger one.
        trust: Whether you trust the file. SavedModel, torch.export and StableHLO files can do more
            than compute, and are only opened with `trust=True`.

    Returns:
        The largest difference over all outputs and batches.

    Raises:
        ValueError: if an argument is invalid, the difference is above `tolerance`, or an ONNX file
            keeps weights in other files.
        ImportError: if the format's runtime is not installed.
        OSError: if `path` holds no such file, or it can't be run (`ChildProcessError`).
    """
    path = Path(path).expanduser()
    check_tolerance(tolerance)
    format = existing_format(path, trust)
    options = read_record(path, format).get("options", {})
    names = ("preprocessing", "outputs", "precision", "compute_dtype", "data_format")
    graph = graph_of(model, format, **{name: options[name] for name in names if name in options})
    batches = named_batches(graph, images)
    return compare(run_file(path, format, batches), graph, batches, tolerance, path)[0]


def compare(
    outputs: Mapping[str, np.ndarray],
    graph: Graph,
    batches: Mapping[str, np.ndarray],
    tolerance: float | None,
    path: Path,
) -> tuple[float, float | None]:
    """Return the largest difference between file and model, and their top-1 agreement.

    Raises a ValueError if the difference is above the tolerance, or the default one for None.
    """
    differences, agreements = [], []
    for key, batch in batches.items():
        model = graph.models[key.rpartition("-")[0]]
        with without_gradients():
            expected = graph.name_outputs(model(batch, training=False))
        for name, value in expected.items():
            value = ops.convert_to_numpy(ops.cast(value, "float32"))
            output = outputs.get(f"{key}.{name}", np.empty(0))
            rule = f"Output {name!r} must be {value.shape}."
            check(output.shape == value.shape, rule, output.shape)
            differences.append(np.max(np.abs(output - value)) / (np.max(np.abs(value)) or 1))
            if name in OUTPUTS and value.shape[-1] > 1:
                agreements += list(output.argmax(axis=-1) == value.argmax(axis=-1))
    # Not `max`, which skips NaN.
    difference = float(np.max(differences))
    if tolerance is None:
        layers = sublayers(graph.networks["serve"])
        halves = (each.compute_dtype in HALF_DTYPES or each.quantization_mode for each in layers)
        is_rounded = graph.precision or graph.compute_dtype or any(halves)
        tolerance = TOLERANCE_ROUNDED if is_rounded else TOLERANCE
    if not difference <= tolerance:
        raise ValueError(
            f"The file at {str(path)!r} differs from model {graph.networks['serve'].name!r} by "
            f"{difference:.2g} of its largest output; tolerance is {tolerance:g}."
        )
    return difference, float(np.mean(agreements)) if agreements else None


def check_tolerance(tolerance: float | None) -> None:
    """Check that `tolerance` is None or a non-negative number."""
    is_number = isinstance(tolerance, (int, float)) and tolerance >= 0
    rule = "`tolerance` must be None or a number of at least 0."
    check(tolerance is None or is_number, rule, tolerance)


def named_batches(graph: Graph, images: Any = None) -> dict[str, np.ndarray]:
    """Return batches by `<signature>-<number>`: `images` for "serve"; single images, too."""
    by_name = {}
    for name, model in graph.models.items():
        batches = batches_for(model, images if name == "serve" else None, graph.data_format)
        if model.inputs[0].shape[0] is None:
            batches = [each for batch in batches for each in (batch[:1], batch)]
        by_name |= {f"{name}-{index}": batch for index, batch in enumerate(batches)}
    return by_name


def batches_for(
    model: keras.Model, images: Any = None, data_format: str = "channels_last"
) -> list[np.ndarray]:
    """Return `images`, or images of the shipped Fashion-MNIST sample, as batches of a model."""
    count, *shape = model.inputs[0].shape
    if images is not None:
        return [_as_input(images, shape, input_dtype(model), count or 2)[:count]]
    is_first = data_format == "channels_first"
    height, width, channels = [*shape[1:], shape[0]] if is_first else shape
    sizes = dict.fromkeys((height or high, width or wide) for high, wide in SIZES)
    batches = [_photographs(model, count or PHOTOGRAPHS, *size, channels) for size in sizes]
    return [np.ascontiguousarray(np.moveaxis(each, -1, 1 if is_first else -1)) for each in batches]


def _as_input(images, shape, dtype, minimum):
    """Return at least `minimum` images of a shape in the dtype of a model's input."""
    images = ops.convert_to_numpy(images)
    fits = images.ndim == 4 and len(images) >= minimum
    fits = fits and all(a in (None, b) for a, b in zip(shape, images.shape[1:], strict=True))
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    check(fits, f"`images` must be ({minimum} or more, {sides}).", images.shape)
    fits = dtype == "float32" or np.array_equal(images.astype(dtype), images)
    check(fits, f"`images` must be of {dtype}, which the model takes.", images.dtype.name)
    return images.astype(dtype)


def _photographs(model, count, height, width, channels):
    """Return images of Fashion-MNIST for a model, normalized unless it takes pixels."""
    sample = data.load_dataset("fashion_mnist").test.images[:count]
    gray = [np.asarray(Image.fromarray(each[..., 0]).resize((width, height))) for each in sample]
    pixels = np.repeat(np.stack(gray)[..., None], channels, axis=-1)
    dtype = input_dtype(model)
    try:
        preprocessing = ModelInput.of(model, any_size=True).preprocessing
    except ValueError:  # Not known; a comparison needs no more than numbers of that order.
        preprocessing = IMAGENET_INCEPTION.for_channels(channels)
    if dtype != "float32" or preprocessing.takes_pixels:
        return (pixels // 2 if dtype == "int8" else pixels).astype(dtype)
    mean, std = preprocessing.mean, preprocessing.std
    return (pixels.astype("float32") / 255 - np.float32(mean)) / np.float32(std)


def input_dtype(model: keras.Model) -> str:
    """Return the dtype of arrays for a model: that of its input, float32 for half precision."""
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float32" if "float" in dtype else dtype
