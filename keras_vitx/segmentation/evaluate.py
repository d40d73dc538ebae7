"""Predictions for images of any size, whole or by sliding windows, and their metrics."""

from collections.abc import Callable, Sequence
from itertools import product
from numbers import Integral
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from keras_vitx.annotations import check_argument
from keras_vitx.data.images import normalize, pixels_of, resize, with_channels
from keras_vitx.preprocessing import ModelInput
from keras_vitx.segmentation.masks import load_dataset
from keras_vitx.segmentation.metrics import confusion, metrics_of
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
        ValueError: if `mode` is unknown or `stride` is not in 1..window.
        OSError: if the image can't be decoded.
    """
    check_segmenter(model)
    return _logits(model, [pixels_of(image)], mode, stride, batch_size)[0]


def evaluate(
    model: keras.Model,
    source: Any,
    split: Literal["validation", "train"] | None = None,
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
        source: As in `load_dataset`.
        split: `"validation"` or `"train"`; None is the first of these that the source has.
        mode: As in `predict`, as is `stride`.
        stride: Pixels between windows.
        batch_size: Images, or windows, per batch.
        perturb: A function that changes the images, such as those of `keras_vitx.robustness`
            (Context Broadcasting, Table 12). Its arguments are images, None and the index.

    Returns:
        `"mean_iou"`; `"accuracy"` of the pixels; `"mean_accuracy"` over the classes in the masks;
        `"iou"`, one number per class, NaN for those in neither; and `"images"`, their number.

    Raises:
        ValueError: if the source lacks the split, or a mask does not fit its image or the number of
            classes.
        OSError: if a file can't be read.
    """
    check_segmenter(model)
    dataset, classes = load_dataset(source), model.output_shape[-1]
    splits = [name for name in ("validation", "train") if getattr(dataset, name) is not None]
    split = check_argument("split", split, Literal[tuple(splits)] | None) or splits[0]
    masked = getattr(dataset, split)
    counts = np.zeros((classes, classes), "int64")
    for start in range(0, masked.size, batch_size):
        indices = range(start, min(start + batch_size, masked.size))
        images, masks = zip(*(masked.pair(i, classes) for i in indices), strict=True)
        predictions = _logits(model, images, mode, stride, batch_size, perturb, start)
        for mask, logits in zip(masks, predictions, strict=True):
            counts += confusion(mask, logits.argmax(-1), classes)
    return {**metrics_of(counts), "images": masked.size}


def to_model(image: np.ndarray, spec: ModelInput, size: tuple[int, int]) -> np.ndarray:
    """Return a uint8 image (height, width, channels) resized to `size` and normalized."""
    image = resize(with_channels(image, spec.channels), tuple(size), Image.Resampling.BILINEAR)
    return normalize(image, spec.preprocessing)


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
        pixels = to_model(image, spec, size)[None]
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
    return [(slice(y, y + height), slice(x, x + width)) for y, x in product(*starts)]


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
