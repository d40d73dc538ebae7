"""Predictions for images of any size: of the whole image at once, or by windows that slide."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.batches import to_model
from keras_vitx.segmentation.sources import image_of

Mode = Literal["whole", "slide"]


def predict(
    model: keras.Model,
    image: Any,
    mode: Mode = "whole",
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
    perturb: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Return the logits of each pixel of an image.

    Args:
        model: A model from images to logits of the same sides, with `preprocessing`.
        image: A path, or uint8 (height, width, channels).
        mode: `"whole"` resizes the image to the input of the model. `"slide"` resizes it, with
            its aspect ratio, to cover the input, and averages the logits of windows of the
            input's size where they overlap.
        stride: Pixels between two windows, one number or one per axis; None is two thirds of
            the window.
        batch_size: Windows per batch.
        perturb: A function that changes the normalized images `(1, height, width, channels)`.

    Returns:
        float32 `(height, width, classes)`, at the size of the image (resized, bilinear);
        the class is `logits.argmax(-1)`.

    Raises:
        ValueError: if `mode` is unknown or `stride` is not in 1..window.
        OSError: if the image can't be decoded.
    """
    spec = ModelInput.of(model)
    check_segmenter(model)
    if mode not in ("whole", "slide"):
        raise ValueError(f"`mode` must be 'whole' or 'slide'. Received: {mode!r}.")
    pixels = image_of(image)
    if mode == "whole":
        return predict_whole(model, [pixels], [perturb])[0]
    # The smallest size of that aspect ratio that covers the input.
    ratio = max(new / old for new, old in zip(spec.size, pixels.shape[:2], strict=True))
    size = tuple(
        max(new, round(old * ratio)) for new, old in zip(spec.size, pixels.shape[:2], strict=True)
    )
    inputs = to_model(pixels, spec, size)
    inputs = inputs if perturb is None else perturb(inputs[None])[0]
    return resize_logits(_slide(model, inputs, spec.size, stride, batch_size), pixels.shape[:2])


def predict_whole(
    model: keras.Model, images: Sequence[np.ndarray], perturb: Sequence[Callable | None]
) -> list[np.ndarray]:
    """Return the logits of whole images, computed as one batch.

    Args:
        model: As in `predict`.
        images: uint8 arrays (height, width, channels), of any sizes.
        perturb: As in `predict`, one per image.
    """
    spec = ModelInput.of(model)
    inputs = [to_model(image, spec, spec.size) for image in images]
    inputs = [
        x if change is None else change(x[None])[0]
        for x, change in zip(inputs, perturb, strict=True)
    ]
    logits = np.asarray(model.predict_on_batch(np.stack(inputs)), "float32")
    return [resize_logits(x, image.shape[:2]) for x, image in zip(logits, images, strict=True)]


def check_segmenter(model: keras.Model) -> None:
    """Check that a model has one output of the images' sides.

    Raises:
        ValueError: if it does not.
    """
    images, outputs = (getattr(model, f"{end}_shape", None) for end in ("input", "output"))
    if not isinstance(outputs, tuple) or len(outputs) != 4 or outputs[1:3] != images[1:3]:
        raise ValueError(
            "`model` must return logits (batch, height, width, classes) of the images' sides, as "
            f"UperNet and LinearHead do. Received: {model.name!r} with outputs {outputs}."
        )


def resize_logits(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize (height, width, classes) to `size`: bilinear, half-pixel centers.

    In NumPy, since images have many sizes, and each would be compiled anew under JAX.
    """
    for axis, new in enumerate(size):
        old = logits.shape[axis]
        if old == new:
            continue
        centers = np.clip((np.arange(new, dtype="float32") + 0.5) * old / new - 0.5, 0, old - 1)
        low = centers.astype(int)
        share = (centers - low).reshape([-1 if i == axis else 1 for i in range(3)])
        above = np.take(logits, np.minimum(low + 1, old - 1), axis)
        logits = np.take(logits, low, axis) * (1 - share) + above * share
    return logits.astype("float32", copy=False)


def _slide(model, inputs, window, stride, batch_size):
    """Return the mean of the logits of windows; the last ones end at the end of the image."""
    steps = tuple(max(1, side * 2 // 3) for side in window) if stride is None else stride
    steps = (steps,) * 2 if isinstance(steps, Integral) else tuple(steps)
    if len(steps) != 2 or not all(
        isinstance(step, Integral) and 1 <= step <= side
        for step, side in zip(steps, window, strict=True)
    ):
        raise ValueError(
            f"`stride` must be whole numbers in 1..window, {tuple(window)}. Received: {stride!r}."
        )
    rows, columns = (
        [*range(0, length - side, step), length - side]
        for length, side, step in zip(inputs.shape[:2], window, steps, strict=True)
    )
    windows = [
        (slice(row, row + window[0]), slice(column, column + window[1]))
        for row in rows
        for column in columns
    ]
    total = np.zeros((*inputs.shape[:2], model.output_shape[-1]), "float32")
    counts = np.zeros((*inputs.shape[:2], 1), "float32")
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        found = model.predict_on_batch(np.stack([inputs[each] for each in batch]))
        for each, logits in zip(batch, np.asarray(found, "float32"), strict=True):
            total[each] += logits
            counts[each] += 1
    return total / counts
