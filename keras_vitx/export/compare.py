"""Comparison of an exported file, or anything that computes the same, with its model."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike
from PIL import Image

from keras_vitx import data
from keras_vitx.backend import without_gradients
from keras_vitx.checks import check
from keras_vitx.keras_internals import sublayers
from keras_vitx.preprocessing import ModelInput, Preprocessing

SIZES = ((1, 96, 128), (8, 160, 112))
"""Numbers of images, and heights and widths for models that take any size."""

TOLERANCE = 5e-5
"""Default tolerance, relative to the largest output, if all layers compute in float32. Rounding
alone moves file and model by up to 1.9e-5 each, possibly to opposite sides."""

TOLERANCE_ROUNDED = 5e-2
"""The same in half precision, or if a layer is quantized: rounding activations to int8 or float8
alone moves outputs by up to 2e-2."""


def compare(
    model: keras.Model,
    run: Callable[[np.ndarray], Any],
    images: ArrayLike = None,
    *,
    tolerance: float | None = None,
) -> float:
    r"""Compare what computes the same as a model, such as a converted file, with the model.

    `run` is called with one image and with all. The difference is
    $\max|y_{run} - y| / \max|y|$, where $y$ is the output of `model`.

    ```python
    session = onnxruntime.InferenceSession("model.onnx")
    kv.export.compare(model, lambda images: session.run(None, {"images": images}))
    ```

    Args:
        model: The model.
        run: A function from images `(n, height, width, channels)` to the outputs of the model: an
            array, or a list or a dictionary of arrays as that of the model.
        images: Images in the format of the model's input. None means eight images of the shipped
            Fashion-MNIST sample, in the size and the preprocessing of the model, and of two sizes
            if it takes any.
        tolerance: Largest difference allowed. None means 5e-5, and 5e-2 if a layer of the model
            computes in half precision or is quantized. A GPU that rounds products to TF32 needs a
            larger one.

    Returns:
        The largest difference over all outputs and batches.

    Raises:
        ValueError: if the shapes of the outputs differ, or the difference is above `tolerance`.
    """
    batches = batches_of(model, images)
    outputs = [keras.tree.flatten(run(batch)) for batch in batches]
    return check_equal(model, batches, outputs, tolerance)


def check_equal(
    model: keras.Model,
    batches: Sequence[np.ndarray],
    outputs: Sequence[Sequence[Any]],
    tolerance: float | None,
) -> float:
    """Return the largest difference of the `outputs` for each batch from the model's."""
    differences = []
    for batch, computed in zip(batches, outputs, strict=True):
        with without_gradients():
            expected = keras.tree.flatten(model(batch, training=False))
        for value, output in zip(map(_as_float, expected), map(_as_float, computed), strict=True):
            # NumPy would broadcast.
            if output.shape != value.shape:
                raise ValueError(f"An output must be {value.shape}. Received: {output.shape}.")
            differences.append(np.max(np.abs(output - value)) / (np.max(np.abs(value)) or 1))
    # Not `max`, which skips NaN.
    difference = float(np.max(differences))
    if tolerance is None:
        layers = sublayers(model)
        halves = (layer.compute_dtype in ("float16", "bfloat16") for layer in layers)
        is_rounded = any(halves) or any(layer.quantization_mode for layer in layers)
        tolerance = TOLERANCE_ROUNDED if is_rounded else TOLERANCE
    rule = f"The outputs must be those of {model.name!r} within {tolerance:g} of the largest."
    check(difference <= tolerance, rule, f"a difference of {difference:.2g}")
    return difference


def _as_float(output):
    return ops.convert_to_numpy(ops.cast(output, "float32"))


def dtype_of_images(model: keras.Model) -> str:
    """Return the dtype of arrays for a model: that of its input, float32 for any float."""
    # NumPy has no bfloat16; the model casts float32 to it.
    dtype = keras.backend.standardize_dtype(model.inputs[0].dtype)
    return "float32" if "float" in dtype else dtype


def batches_of(model: keras.Model, images: ArrayLike = None) -> list[np.ndarray]:
    """Return one image and all of them, as a model takes them; of the shipped sample for None."""
    dtype, (count, height, width, _) = dtype_of_images(model), model.inputs[0].shape
    if images is None:
        sizes = [(count or n, height or high, width or wide) for n, high, wide in SIZES]
        return [_photographs(model, dtype, *size) for size in sizes]
    images = ops.convert_to_numpy(images).astype(dtype)
    return [images[: count or 1], images[:count]]


def _photographs(model, dtype, count, height, width):
    """Return images of Fashion-MNIST for a model, normalized unless it takes pixels."""
    channels = model.inputs[0].shape[-1]
    sample = data.load_dataset("fashion_mnist").test.images[:count]
    gray = [np.asarray(Image.fromarray(x[..., 0]).resize((width, height))) for x in sample]
    pixels = np.repeat(np.stack(gray)[..., None], channels, axis=-1)
    try:
        preprocessing = ModelInput.of(model, any_size=True).preprocessing
    except ValueError:  # Not known; a comparison needs no more than numbers of that order.
        preprocessing = Preprocessing((0.5,), (0.5,))
    if dtype != "float32" or preprocessing.takes_pixels:
        return pixels.astype(dtype)
    mean, std = preprocessing.mean, preprocessing.std
    return (pixels.astype("float32") / 255 - np.float32(mean)) / np.float32(std)
