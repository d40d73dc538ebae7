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
    facts = ModelInput.of(model)
    check_segmenter(model)
    check_mode(mode)
    pixels = image_of(image)
    if mode == "whole":
        return predict_whole(model, [pixels], [perturb])[0]
    inputs = _perturbed(to_model(pixels, facts, _covering(pixels.shape[:2], facts.size)), perturb)
    logits = _slid(model, inputs, facts.size, stride, batch_size)
    return resize_logits(logits, pixels.shape[:2])


def predict_whole(
    model: keras.Model, images: Sequence[np.ndarray], perturb: Sequence[Callable | None]
) -> list[np.ndarray]:
    """Return the logits of whole images, computed as one batch.

    Args:
        model: As in `predict`.
        images: uint8 arrays (height, width, channels), of any sizes.
        perturb: As in `predict`, one per image.
    """
    facts = ModelInput.of(model)
    inputs = [
        _perturbed(to_model(image, facts, facts.size), change)
        for image, change in zip(images, perturb, strict=True)
    ]
    found = _run(model, np.stack(inputs))
    return [
        resize_logits(logits, image.shape[:2]) for logits, image in zip(found, images, strict=True)
    ]


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


def check_mode(mode: Any) -> None:
    """Check the way of inference.

    Raises:
        ValueError: if it is unknown.
    """
    if mode not in ("whole", "slide"):
        raise ValueError(f"`mode` must be 'whole' or 'slide'. Received: {mode!r}.")


def starts(length: int, window: int, stride: int) -> list[int]:
    """Return where windows begin along one axis; the last one ends at the end of the image."""
    return [*range(0, length - window, stride), length - window]


def resize_logits(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize (height, width, classes) to `size`: bilinear, half-pixel centres."""
    for axis, new in enumerate(size):
        old = logits.shape[axis]
        if old == new:
            continue
        places = np.clip((np.arange(new, dtype="float32") + 0.5) * old / new - 0.5, 0, old - 1)
        low = places.astype(int)
        share = (places - low).reshape([-1 if i == axis else 1 for i in range(3)])
        above = np.take(logits, np.minimum(low + 1, old - 1), axis)
        logits = np.take(logits, low, axis) * (1 - share) + above * share
    return logits.astype("float32", copy=False)


def _covering(size, window):
    ratio = max(part / side for part, side in zip(window, size, strict=True))
    return tuple(max(part, round(side * ratio)) for part, side in zip(window, size, strict=True))


def _slid(model, inputs, window, stride, batch_size):
    strides = _strides(stride, window)
    rows, columns = (starts(*axis) for axis in zip(inputs.shape[:2], window, strides, strict=True))
    corners = [(row, column) for row in rows for column in columns]
    total, counts = None, np.zeros((*inputs.shape[:2], 1), "float32")
    for first in range(0, len(corners), batch_size):
        places = [
            (slice(row, row + window[0]), slice(column, column + window[1]))
            for row, column in corners[first : first + batch_size]
        ]
        found = _run(model, np.stack([inputs[place] for place in places]))
        if total is None:
            total = np.zeros((*inputs.shape[:2], found.shape[-1]), "float32")
        for place, logits in zip(places, found, strict=True):
            total[place] += logits
            counts[place] += 1
    return total / counts


def _strides(stride, window):
    strides = tuple(max(1, side * 2 // 3) for side in window) if stride is None else stride
    strides = (strides,) * 2 if isinstance(strides, Integral) else tuple(strides)
    if len(strides) != 2 or not all(
        isinstance(step, Integral) and 1 <= step <= side
        for step, side in zip(strides, window, strict=True)
    ):
        raise ValueError(
            f"`stride` must be whole numbers in 1..window, {tuple(window)}. Received: {stride!r}."
        )
    return strides


def _perturbed(inputs, perturb):
    return inputs if perturb is None else perturb(inputs[None])[0]


def _run(model, images):
    return np.asarray(model.predict_on_batch(images), "float32")
