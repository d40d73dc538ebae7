"""Comparison of an exported file with its model."""

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
from keras_vitx.export.convert import run_file
from keras_vitx.export.formats import existing_format
from keras_vitx.export.formats.base import HALF_DTYPES, Graph
from keras_vitx.export.graph import OUTPUTS, as_input, check, in_layout, input_dtype, prepare
from keras_vitx.export.record import read_record
from keras_vitx.keras_internals import sublayers

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
        ValueError: if an argument is invalid, or the difference is above `tolerance`.
        ImportError: if the format's runtime is not installed.
        OSError: if `path` holds no such file, or it can't be run (`ChildProcessError`).
    """
    path = Path(path).expanduser()
    check_tolerance(tolerance)
    format = existing_format(path, trust)
    options = read_record(path, format).get("options", {})
    names = ("preprocessing", "outputs", "precision", "compute_dtype", "data_format")
    graph = prepare(model, format, **{name: options[name] for name in names if name in options})
    batches = named_batches(graph, images)
    difference, _ = compare(run_file(path, format, batches), graph, batches)
    check_difference(difference, tolerance, graph, path)
    return difference


def compare(
    outputs: Mapping[str, np.ndarray], graph: Graph, batches: Mapping[str, np.ndarray]
) -> tuple[float, float | None]:
    """Return the largest difference between file and model, and their top-1 agreement."""
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
            if name in OUTPUTS:
                agreements += list(output.argmax(axis=-1) == value.argmax(axis=-1))
    # Not `max`, which skips NaN.
    return float(np.max(differences)), float(np.mean(agreements)) if agreements else None


def check_difference(difference: float, tolerance: float | None, graph: Graph, path: Path) -> None:
    """Check that a difference is within the tolerance, or the default one for None."""
    model = graph.networks["serve"]
    if tolerance is None:
        is_rounded = graph.precision or graph.compute_dtype
        is_rounded = is_rounded or any(
            layer.compute_dtype in HALF_DTYPES or layer.quantization_mode is not None
            for layer in sublayers(model)
        )
        tolerance = TOLERANCE_ROUNDED if is_rounded else TOLERANCE
    if not difference <= tolerance:
        raise ValueError(
            f"The file at {str(path)!r} differs from model {model.name!r} by "
            f"{difference:.2g} of its largest output; tolerance is {tolerance:g}."
        )


def check_tolerance(tolerance: float | None) -> None:
    """Check that `tolerance` is None or a non-negative number."""
    is_valid = tolerance is None or (isinstance(tolerance, (int, float)) and tolerance >= 0)
    check(is_valid, "`tolerance` must be None or a number of at least 0.", tolerance)


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
        return [as_input(images, model, "`images` must be", count or 2)[:count]]
    if data_format == "channels_first":
        shape = [*shape[1:], shape[0]]
    batches = []
    for height, width in SIZES if None in shape else SIZES[:1]:
        sides = (shape[0] or height, shape[1] or width)
        batch = _photographs(model, count or PHOTOGRAPHS, *sides, shape[2])
        batches.append(in_layout(batch, data_format))
    return batches


def _photographs(model, count, height, width, channels):
    """Return images of Fashion-MNIST for a model, normalized unless it takes pixels."""
    sample = data.load_dataset("fashion_mnist").test.images[:count]
    gray = [np.asarray(Image.fromarray(each[..., 0]).resize((width, height))) for each in sample]
    pixels = np.repeat(np.stack(gray)[..., None], channels, axis=-1)
    dtype = input_dtype(model)
    if dtype != "float32" or any(
        isinstance(layer, keras.layers.Rescaling) or getattr(layer, "takes_pixels", False)
        for layer in sublayers(model)
    ):
        return (pixels // 2 if dtype == "int8" else pixels).astype(dtype)
    preprocessing = getattr(model, "preprocessing", None)
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else ([0.5], [0.5])
    return (pixels.astype("float32") / 255 - np.float32(mean)) / np.float32(std)
