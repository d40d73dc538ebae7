"""Comparison of an exported file with its model."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from PIL import Image

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.export.convert import Outputs, run_file
from keras_vitx.export.formats import check_trusted, format_of, require
from keras_vitx.export.formats.base import HALF_DTYPES
from keras_vitx.export.prepare import Prepared, as_input, prepare
from keras_vitx.export.write import read_record
from keras_vitx.keras_internals import sublayers

PHOTOGRAPHS = 8
"""Number of photographs."""

SIZES = ((96, 128), (160, 112))
"""Heights and widths of the images for models that take any size."""

TOLERANCE = 5e-5
"""Default tolerance, relative to the largest output, if all layers compute in float32. The rounding
of float32 alone moves the probabilities of small random models by up to 1.1e-5, and their logits
by up to 1.9e-5, from those in float64; file and model may err to opposite sides."""

TOLERANCE_ROUNDED = 5e-2
"""The same if a layer computes in half precision or is quantized, or if weights are stored in
half precision: in int8 and float8, the rounding of activations alone accounts for up to 2e-2."""

TOLERANCE_INTEGER = 0.25
"""The same for weights that the export stores in int8 or int4. It tells a broken file, whose
outputs have nothing to do with the model's, from a rounded one; how good a rounded one is shows
in `Comparison.top1`, and in its accuracy."""


@dataclass(frozen=True)
class Comparison:
    """What the runtime of a format said about a file.

    Attributes:
        difference: Largest difference of an output, relative to the largest output.
        top1: Fraction of images with the same largest output; None without a classifier.
        latency_ms: Median time of one image in the runtime, in milliseconds.
        versions: Version of the runtime.
    """

    difference: float
    top1: float | None = None
    latency_ms: float | None = None
    versions: dict[str, str] = field(default_factory=dict)


def verify(
    path: str | os.PathLike,
    model: keras.Model,
    images: Any = None,
    *,
    tolerance: float | None = None,
    trust: bool = False,
) -> float:
    r"""Compare an exported file with the model it was exported from.

    A new process, in which neither Keras nor this package can be imported, opens the file
    in its own runtime on the CPU and runs one image and the whole batch. The difference is
    $\max|y_{file} - y| / \max|y|$, where $y$ is the output of `model`.

    Args:
        path: The file or folder. Its suffix gives the format, and the record beside it what
            was exported (preprocessing inside, logits, weights in float16).
        model: The model.
        images: Input images of the file, `(n, height, width, channels)` with n at least 2.
            For a file that takes any size, also a list of such batches. None means eight
            images of the shipped Fashion-MNIST sample, in the size and the preprocessing of the
            model, and in two sizes if it takes any: values from 0 to 255 for an integer input
            and for a model that contains `ImagePreprocessing` or `keras.layers.Rescaling`.
        tolerance: Largest difference allowed. None means 5e-5, or 5e-2 if a layer computes
            in lower precision than float32 or is quantized, or if weights are stored in
            half precision, or 0.25 in int8 and int4. A GPU that
            rounds products to TF32 needs a larger tolerance.
        trust: Whether the file is one of yours. SavedModel, torch.export and StableHLO files can
            do more than compute, and are not opened without.

    Returns:
        The largest difference over all outputs and batches.

    Raises:
        ValueError: if an argument is invalid, or the difference is above `tolerance`.
        ImportError: if the format's runtime is not installed.
        OSError: if `path` holds no such file, or it can't be run (`ChildProcessError`).
    """
    path = Path(path)
    check_model(model)
    check_tolerance(tolerance)
    format = format_of(path)
    require(format)
    if not path.exists() or not format.is_one(path):
        kind = "the folder of a SavedModel" if not format.suffix else f"{format.title} data"
        raise FileNotFoundError(f"path: {str(path)!r} is not {kind}.")
    check_trusted(path, format, trust)
    options = read_record(path, format).get("options", {})
    parts = prepare(
        model,
        options.get("preprocessing", False),
        options.get("outputs"),
        format.any_size,
        options.get("data_format", "channels_last"),
    )
    if tolerance is None:
        half = options.get("compute_dtype")
        tolerance = tolerance_for(model, options.get("precision"), half)
    batches = named_batches(parts, images)
    found = compare(run_file(path, format, batches), parts, batches)
    check_difference(found.difference, tolerance, path, model)
    return found.difference


def compare(outputs: Outputs, parts: Prepared, batches: Mapping[str, np.ndarray]) -> Comparison:
    """Compare the outputs of a file with those of its model.

    Args:
        outputs: What `run_file` returned for the batches.
        parts: The model.
        batches: Images of the file's input, as `named_batches` returns them.

    Raises:
        ValueError: if the file's outputs have other names or shapes.
    """
    model, names = parts.joined(), parts.outputs
    differences, agreements = [], []
    for index, batch in batches.items():
        for name, expected in zip(names, outputs_of(model, batch), strict=True):
            output = _output(outputs, index, name, len(names))
            differences.append(_difference(output, expected))
            if name in ("probabilities", "logits"):
                agreements += list(output.argmax(axis=-1) == expected.argmax(axis=-1))
    # Not `max`, which skips what is not a number.
    difference = float(np.max(differences))
    metadata = json.loads(str(outputs.get("metadata", "{}")))
    return Comparison(difference, float(np.mean(agreements)) if agreements else None, **metadata)


def check_difference(
    difference: float, tolerance: float, path: Path, model: keras.Model, where: str = ""
) -> None:
    """Check that a difference is within the tolerance.

    Raises:
        ValueError: if it is not.
    """
    if not difference <= tolerance:
        raise ValueError(
            f"The file at {str(path)!r} differs from model {model.name!r} by "
            f"{difference:.2g} of its largest output; tolerance is {tolerance:g}.{where}"
        )


def tolerance_for(
    model: keras.Model, precision: str | None = None, compute_dtype: str | None = None
) -> float:
    """Return the default tolerance of a model whose weights are stored in a precision."""
    if precision and "int" in precision:
        return TOLERANCE_INTEGER
    rounded = (
        precision
        or compute_dtype
        or any(
            layer.compute_dtype in HALF_DTYPES or layer.quantization_mode is not None
            for layer in sublayers(model)
        )
    )
    return TOLERANCE_ROUNDED if rounded else TOLERANCE


def check_model(model: keras.Model) -> None:
    """Check that `model` takes one batch of images.

    Raises:
        ValueError: if it does not.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"model should be a built Keras model, not {model!r}.")
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or []]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][3] is None:
        raise ValueError(
            "model should take one batch of images, (batch, height, width, channels); "
            f"its inputs are {shapes or 'unknown'}."
        )


def check_tolerance(tolerance: float | None) -> None:
    """Check that `tolerance` is None or a non-negative number.

    Raises:
        ValueError: if it is not.
    """
    if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
        raise ValueError(f"tolerance should be None or a number of at least 0, not {tolerance!r}.")


def outputs_of(model: keras.Model, images: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of the model as a flat list of float32 arrays."""
    with without_gradients():
        outputs = keras.tree.flatten(model(images, training=False))
        return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in outputs]


def _output(found, batch, name, count):
    if count == 1:
        # Whatever its name: files of other programs have other ones.
        (output,) = (value for key, value in found.items() if key.split(".")[0] == batch)
        return output
    return found[f"{batch}.{name}"]


def _difference(saved, output):
    if saved.shape != output.shape:
        raise ValueError(
            f"The file returns an output of shape {saved.shape}, "
            f"the model one of shape {output.shape}."
        )
    return float(np.max(np.abs(saved - output)) / (np.max(np.abs(output)) or 1))


def named_batches(
    parts: Prepared, images: Any = None, signature: str = ""
) -> dict[str, np.ndarray]:
    """Return images of a file's input, or others, as batches by name; see `batches_for`.

    Where the file takes any number of images, one image of each batch is a batch, too.
    """
    model = replace(parts, data_format="channels_last").joined()
    is_first = parts.data_format == "channels_first"
    if is_first and images is not None:
        several = isinstance(images, Sequence)
        images = [np.moveaxis(batch, 1, -1) for batch in (images if several else [images])]
    batches = batches_for(model, images)
    if model.inputs[0].shape[0] is None:
        batches = [part for batch in batches for part in (batch[:1], batch)]
    if is_first:
        batches = [np.ascontiguousarray(np.moveaxis(batch, -1, 1)) for batch in batches]
    return {f"{signature}-{index}": batch for index, batch in enumerate(batches)}


def batches_for(model: keras.Model, images: Any = None) -> list[np.ndarray]:
    """Return `images`, or photographs of the shipped Fashion-MNIST sample, as batches of a model.

    Args:
        model: The model.
        images: As in `verify`.

    Raises:
        ValueError: if the images do not fit the model.
    """
    count, *shape = model.inputs[0].shape
    if images is None:
        sizes = SIZES if None in shape else SIZES[:1]
        return [
            _photographs(model, count or PHOTOGRAPHS, shape[0] or height, shape[1] or width)
            for height, width in sizes
        ]
    several = isinstance(images, Sequence) and all(np.ndim(batch) == 4 for batch in images)
    return [
        as_input(batch, model, "images should be", count or 2, exact=count is not None)
        for batch in (images if several else [images])
    ]


def takes_pixels(model: keras.Model) -> bool:
    """Return whether the model takes values in 0..255."""
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float" not in dtype or any(
        isinstance(layer, keras.layers.Rescaling) or getattr(layer, "takes_pixels", False)
        for layer in sublayers(model)
    )


def _photographs(model, count, height, width):
    """Return images of Fashion-MNIST as the model takes them, normalized unless as pixels."""
    found = data.load_dataset("fashion_mnist").test.images[:count]
    gray = [np.asarray(Image.fromarray(each[..., 0]).resize((width, height))) for each in found]
    pixels = np.repeat(np.stack(gray)[..., None], model.inputs[0].shape[-1], axis=-1)
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    if takes_pixels(model):
        return (pixels // 2 if dtype == "int8" else pixels).astype(
            "float32" if "float" in dtype else dtype
        )
    known = getattr(model, "preprocessing", None)
    mean, std = (known.mean, known.std) if known else ([0.5], [0.5])
    return (pixels.astype("float32") / 255 - np.float32(mean)) / np.float32(std)
