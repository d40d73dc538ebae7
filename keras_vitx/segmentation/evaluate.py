"""Predictions for images of any size, whole or by sliding windows, and their metrics."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, Literal

import keras
import numpy as np
from PIL.Image import Resampling

from keras_vitx.checks import PositiveInt, check_argument
from keras_vitx.data.images import normalize, pixels_of, resize, with_channels
from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.metrics import IGNORED, confusion, metrics_of
from keras_vitx.segmentation.model import check_segmenter

Mode = Literal["whole", "slide"]


def predict(
    model: keras.Model,
    image: Any,
    mode: Mode = "whole",
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
) -> np.ndarray:
    """Return the logits of each pixel of an image.

    Args:
        model: A model from images to logits of the same size, with `preprocessing`.
        image: A path, or uint8 (height, width, channels).
        mode: `"whole"` resizes the image to the input of the model. `"slide"` resizes it, with its
            aspect ratio, to cover the input, and averages the logits of overlapping windows of the
            input's size.
        stride: Pixels between windows, one number or one per axis; None is two thirds of the
            window.
        batch_size: Windows per batch.

    Returns:
        float32 `(height, width, classes)`, resized to the size of the image (bilinear); the class
        is `logits.argmax(-1)`.

    Raises:
        ValueError: if an argument is out of range, such as a `stride` beyond the window.
        OSError: if the image can't be decoded.
    """
    check_segmenter(model)
    check_argument("batch_size", batch_size, PositiveInt)
    return _logits(model, [pixels_of(image)], mode, stride, batch_size)[0]


def evaluate(
    model: keras.Model,
    pairs: Iterable,
    mode: Mode = "whole",
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
    perturb: Callable[[np.ndarray, Any, int], np.ndarray] | None = None,
) -> dict[str, Any]:
    r"""Evaluate a model on images with masks, at the size of the masks.

    With $n_{ij}$ pixels of class $i$ predicted as $j$, the intersection over union of a class is
    $n_{ii} / (\sum_j n_{ij} + \sum_j n_{ji} - n_{ii})$; its mean is over the classes in a mask or
    a prediction.

    Args:
        model: A model from images to logits of the same size, with `preprocessing`.
        pairs: Pairs (image, mask) in a list or anything else to iterate over, of which `batch_size`
            are in memory at a time. An image is as in `predict`; a mask is integers (height,
            width), the class of each pixel or 255, which is ignored.
        mode: As in `predict`, as is `stride`.
        stride: Pixels between windows.
        batch_size: Images, or windows, per batch.
        perturb: A function that changes the images, such as those of `keras_vitx.robustness`
            (Context Broadcasting, Table 12). Its arguments are images, None and the index.

    Returns:
        `"mean_iou"`; `"accuracy"` of the pixels; `"mean_accuracy"` over the classes in the masks;
        `"iou"`, one number per class, NaN for those in neither; and `"images"`, their number.

    Raises:
        ValueError: if a mask does not fit its image or the number of classes (the message has the
            index of the pair), or no pixel has a class.
        OSError: if an image can't be decoded.
    """
    check_segmenter(model)
    check_argument("batch_size", batch_size, PositiveInt)
    classes, images = model.output_shape[-1], 0
    counts = np.zeros((classes, classes), "int64")
    try:
        iterator = iter(pairs)
    except TypeError:
        raise ValueError(f"`pairs` must be pairs (image, mask). Received: {pairs!r:.60}.") from None
    while batch := list(itertools.islice(iterator, batch_size)):
        checked = [check_pair(pair, images + i, classes) for i, pair in enumerate(batch)]
        predictions = _logits(
            model, [image for image, _ in checked], mode, stride, batch_size, perturb, images
        )
        for (_, mask), logits in zip(checked, predictions, strict=True):
            counts += confusion(mask, logits.argmax(-1), classes)
        images += len(batch)
    return {**metrics_of(counts), "images": images}


def check_pair(pair: Any, index: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a uint8 image and its mask; a ValueError if they don't fit each other or `classes`."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        kind, count = type(pair).__name__, getattr(pair, "__len__", lambda: 0)()
        raise ValueError(f"`pairs[{index}]` must be (image, mask). Received: a {kind} of {count}.")
    image, mask = pixels_of(pair[0]), np.asarray(pair[1])
    if mask.shape != image.shape[:2] or mask.dtype.kind not in "iu":
        raise ValueError(
            f"The mask of `pairs[{index}]` must be integers of the image's size "
            f"{image.shape[:2]}. Received: {mask.dtype} of shape {mask.shape}."
        )
    invalid = np.unique(mask[(mask != IGNORED) & ((mask < 0) | (mask >= classes))])
    if len(invalid):
        raise ValueError(
            f"The labels of the mask of `pairs[{index}]` must be in 0..{classes - 1}, or {IGNORED} "
            f"for ignored pixels. Received: {invalid[-1]}."
        )
    return image, mask


def _logits(
    model: keras.Model,
    images: Sequence[np.ndarray],
    mode: Mode,
    stride: int | tuple[int, int] | None,
    batch_size: int,
    perturb: Callable | None = None,
    first: int = 0,
) -> list[np.ndarray]:
    """Return the logits of uint8 images, of which `first` is the index, at their sizes."""
    check_argument("mode", mode, Mode)
    spec = ModelInput.of(model)
    steps = _steps(stride, spec.size) if mode == "slide" else spec.size
    inputs, windows = [], []
    for index, image in enumerate(images):
        size = spec.size
        if mode == "slide":  # The smallest size of this aspect ratio that covers the input.
            ratio = max(new / old for new, old in zip(size, image.shape, strict=False))
            size = [max(n, round(o * ratio)) for n, o in zip(size, image.shape, strict=False)]
        windows += [(index, *window) for window in _windows(size, spec.size, steps)]
        image = resize(with_channels(image, spec.channels), tuple(size), Resampling.BILINEAR)
        pixels = normalize(image, spec.preprocessing)[None]
        inputs.append((perturb(pixels, None, first + index) if perturb else pixels)[0])
    totals = [np.zeros((*x.shape[:2], model.output_shape[-1]), "float32") for x in inputs]
    counts = [np.zeros((*x.shape[:2], 1), "float32") for x in inputs]
    for start in range(0, len(windows), batch_size):
        batch = windows[start : start + batch_size]
        pixels = np.stack([inputs[index][rows, columns] for index, rows, columns in batch])
        outputs = np.asarray(model.predict_on_batch(pixels), "float32")
        for (index, rows, columns), logits in zip(batch, outputs, strict=True):
            totals[index][rows, columns] += logits
            counts[index][rows, columns] += 1
    return [
        resize_logits(total / count, image.shape[:2])
        for total, count, image in zip(totals, counts, images, strict=True)
    ]


def _steps(stride, window):
    """Return the pixels between windows, per axis."""
    if stride is None:
        return tuple(max(1, side * 2 // 3) for side in window)
    steps = (stride,) * 2 if isinstance(stride, Integral) else tuple(stride)
    valid = len(steps) == 2 and all(isinstance(step, Integral) for step in steps)
    if not valid or not all(0 < step <= side for step, side in zip(steps, window, strict=True)):
        raise ValueError(
            f"`stride` must be integers in 1..window, {tuple(window)}. Received: {stride!r}."
        )
    return steps


def _windows(size, window, steps):
    """Return the slices of windows that cover an image; the last ones are aligned with its end."""
    starts = (
        [*range(0, length - side, step), length - side]
        for length, side, step in zip(size, window, steps, strict=True)
    )
    height, width = window
    return [(slice(y, y + height), slice(x, x + width)) for y, x in itertools.product(*starts)]


def resize_logits(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize (height, width, classes) to `size`: bilinear, half-pixel centers."""
    # In NumPy, since JAX would compile it for each size of images.
    for axis, new in enumerate(size):
        old = logits.shape[axis]
        if old == new:
            continue
        centers = np.clip((np.arange(new, dtype="float32") + 0.5) * old / new - 0.5, 0, old - 1)
        low = centers.astype(int)
        weight = (centers - low).reshape([-1 if i == axis else 1 for i in range(3)])
        high = np.take(logits, np.minimum(low + 1, old - 1), axis)
        logits = np.take(logits, low, axis) * (1 - weight) + high * weight
    return logits.astype("float32", copy=False)
