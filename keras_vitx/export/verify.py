"""Comparison of an exported model with the original."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import without_gradients
from keras_vitx.export.process import require_tensorflow, run_python
from keras_vitx.keras_internals import sublayers

TOLERANCE = 1e-5
"""Default tolerance, relative to the largest output, if all layers compute in float32."""

TOLERANCE_ROUNDED = 5e-2
"""The same if a layer computes in half precision or is quantized: in int8 and float8, the
rounding of activations alone accounts for up to 2e-2."""

SIZES = ((96, 128), (160, 112))
"""Heights and widths of the random images for models that take any size."""


def verify(
    path: str | os.PathLike,
    model: keras.Model,
    images: Any = None,
    *,
    tolerance: float | None = None,
) -> float:
    r"""Compare a SavedModel with the model it was exported from.

    A new process, in which neither Keras nor this package can be imported, runs the
    SavedModel's endpoint `serve` on the CPU, on one image and on the whole batch.
    The difference is $\max|y_{saved} - y| / \max|y|$, where $y$ is the output of `model`.

    Args:
        path: The folder of the SavedModel.
        model: The model.
        images: Input images of the model, `(n, height, width, channels)` with n at least 2.
            For a model that takes any size, also a list of such batches. None generates
            three random images: integers from 0 to 255 for an integer input and for a
            model that contains `ImagePreprocessing` or `keras.layers.Rescaling`, normally
            distributed values otherwise; in two sizes if the model takes any size.
        tolerance: Largest difference allowed. None means 1e-5, or 5e-2 if a layer computes
            in lower precision than float32 or is quantized. A GPU that rounds products to
            TF32 needs a larger tolerance.

    Returns:
        The largest difference over all outputs and batches.

    Raises:
        ValueError: if an argument is invalid, or the difference is above `tolerance`.
        ImportError: if TensorFlow is not installed.
        OSError: if `path` is not a SavedModel, or it can't be run (`ChildProcessError`).
    """
    path = Path(path)
    check_model(model)
    check_tolerance(tolerance)
    batches = batches_for(model, images)
    require_tensorflow()
    if not (path / "saved_model.pb").is_file():
        raise FileNotFoundError(f"path: {str(path)!r} is not the folder of a SavedModel.")
    if tolerance is None:
        tolerance = TOLERANCE_ROUNDED if _is_rounded(model) else TOLERANCE

    if model.inputs[0].shape[0] is None:
        batches = [part for batch in batches for part in (batch[:1], batch)]
    batches = {str(index): batch for index, batch in enumerate(batches)}
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(inputs, **batches)
        # Run by path, since as a module it would import this package.
        run_python(Path(__file__).with_name("serve.py"), path, inputs, outputs)
        saved = dict(np.load(outputs))
    difference = max(
        _difference(saved[f"{name}.{index}"], output)
        for name, batch in batches.items()
        for index, output in enumerate(_outputs(model, batch))
    )
    if not difference <= tolerance:
        raise ValueError(
            f"The SavedModel at {str(path)!r} differs from model {model.name!r} by "
            f"{difference:.2g} of its largest output; tolerance is {tolerance:g}."
        )
    return difference


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


def batches_for(model: keras.Model, images: Any = None) -> list[np.ndarray]:
    """Return `images`, or random ones, as batches of the model's input dtype.

    Args:
        model: The model.
        images: As in `verify`.

    Raises:
        ValueError: if the images do not fit the model.
    """
    count, *shape = model.inputs[0].shape
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    # NumPy has no bfloat16; both sides cast float32 to it.
    dtype = "float32" if "float" in dtype else dtype
    if images is None:
        sizes = SIZES if None in shape else SIZES[:1]
        return [_random_images(model, (count or 3, *shape), size, dtype) for size in sizes]
    several = isinstance(images, Sequence) and all(np.ndim(batch) == 4 for batch in images)
    batches = [ops.convert_to_numpy(batch) for batch in (images if several else [images])]
    for batch in batches:
        fits = batch.ndim == 4 and all(
            side in (None, given) for side, given in zip((count, *shape), batch.shape, strict=True)
        )
        if not fits or (count is None and len(batch) < 2):
            sides = ", ".join("any" if side is None else str(side) for side in shape)
            raise ValueError(
                f"images should be ({count or '2 or more'}, {sides}), not {batch.shape}."
            )
        if dtype != "float32" and not np.array_equal(batch.astype(dtype), batch):
            raise ValueError(
                f"images should hold values of {dtype}, the dtype that the model takes."
            )
    return [batch.astype(dtype) for batch in batches]


def _random_images(model, shape, size, dtype):
    random = np.random.default_rng(0)
    shape = [known or made for known, made in zip(shape, (None, *size, None), strict=True)]
    takes_pixels = any(
        isinstance(layer, keras.layers.Rescaling) or getattr(layer, "takes_pixels", False)
        for layer in sublayers(model)
    )
    if dtype == "float32" and not takes_pixels:
        return random.standard_normal(shape, "float32")
    return random.integers(0, 128 if dtype == "int8" else 256, shape).astype(dtype)


def _is_rounded(model):
    return any(
        layer.compute_dtype in ("bfloat16", "float16") or layer.quantization_mode is not None
        for layer in sublayers(model)
    )


def _outputs(model, images):
    """Return the outputs of the model as a flat list of float32 arrays."""
    with without_gradients():
        outputs = keras.tree.flatten(model(images, training=False))
        return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in outputs]


def _difference(saved, output):
    if saved.shape != output.shape:
        raise ValueError(
            f"The SavedModel returns an output of shape {saved.shape}, "
            f"the model one of shape {output.shape}."
        )
    return float(np.max(np.abs(saved - output)) / (np.max(np.abs(output)) or 1))
