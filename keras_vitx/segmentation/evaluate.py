"""Predictions for images of any size, whole or by windows that slide, and their measures."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from keras_vitx.data.preprocessing import normalize, pixels_of, resize, with_channels
from keras_vitx.preprocessing import ModelInput
from keras_vitx.renamed import renamed_arguments
from keras_vitx.segmentation.masks import IGNORED, load_dataset

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
    check_segmenter(model)
    return _logits(model, [pixels_of(image)], [perturb], mode, stride, batch_size)[0]


@renamed_arguments(part="split")
def evaluate(
    model: keras.Model,
    source: Any,
    split: Literal["validation", "train"] | None = None,
    mode: Mode = "whole",
    stride: int | tuple[int, int] | None = None,
    batch_size: int = 8,
    perturb: Callable[[np.ndarray, Any, int], np.ndarray] | None = None,
) -> dict[str, Any]:
    r"""Measure a model on images with masks, at the size of the masks.

    With $n_{ij}$ pixels of class $i$ predicted as $j$, the intersection over union of a
    class is $n_{ii} / (\sum_j n_{ij} + \sum_j n_{ji} - n_{ii})$; its mean is over the
    classes that are in a mask or in a prediction.

    Args:
        model: A model from images to logits of the same sides, with `preprocessing`.
        source: As in `load_dataset`.
        split: `"validation"` or `"train"`; None is the first of these that the source has.
        mode: As in `predict`, as is `stride`.
        stride: Pixels between two windows.
        batch_size: Images, or windows of one image, per batch.
        perturb: A function that changes the images, such as those of `keras_vitx.robustness`
            (Context Broadcasting, Table 12). It is given images, None and the index.

    Returns:
        `"mean_iou"`; `"accuracy"` of the pixels; `"mean_accuracy"` over the classes in the
        masks; `"iou"`, one number per class, NaN for those that are in neither; and `"images"`,
        their number.

    Raises:
        ValueError: if the source lacks the split, or a mask does not fit its image or the
            number of classes.
        OSError: if a file can't be read.
    """
    check_segmenter(model)
    dataset = load_dataset(source)
    present = [name for name in ("validation", "train") if getattr(dataset, name) is not None]
    if split is not None and split not in present:
        raise ValueError(f"`split` must be one of {', '.join(present)}. Received: {split!r}.")
    masked = getattr(dataset, split or present[0])
    counts = Counts(model.output_shape[-1])
    for start in range(0, masked.size, batch_size):
        indices = range(start, min(start + batch_size, masked.size))
        images, masks = zip(*(masked.pair(i, counts.classes) for i in indices), strict=True)
        changes = [perturb and (lambda x, i=i: perturb(x, None, i)) for i in indices]
        found = _logits(model, images, changes, mode, stride, batch_size)
        for mask, logits in zip(masks, found, strict=True):
            counts.add(mask, logits.argmax(-1))
    return {**counts.measures(), "images": masked.size}


class Counts:
    """Counts of pixels by true (rows) and predicted class, exact for any number of pixels."""

    def __init__(self, classes: int):
        self.classes = classes
        self.matrix = np.zeros((classes, classes), "int64")

    def add(self, mask: np.ndarray, predicted: np.ndarray) -> None:
        """Count the pixels of a mask; those of the label `IGNORED` are left out."""
        counts = mask != IGNORED
        pairs = mask[counts].astype("int64") * self.classes + predicted[counts]
        found = np.bincount(pairs, minlength=self.classes**2)
        self.matrix += found.reshape(self.matrix.shape)

    def measures(self) -> dict[str, Any]:
        """Return the measures of `evaluate` by name."""
        right = self.matrix.diagonal()
        true, predicted = self.matrix.sum(1), self.matrix.sum(0)
        if not true.any():
            raise ValueError("The masks have no pixel that is not ignored.")
        with np.errstate(invalid="ignore"):
            iou = right / (true + predicted - right)
            recall = right / true
        return {
            "mean_iou": float(np.nanmean(iou)),
            "accuracy": float(right.sum() / true.sum()),
            "mean_accuracy": float(np.nanmean(recall)),
            "iou": iou,
        }


def check_segmenter(model: keras.Model) -> None:
    """Raise a ValueError unless a model has one output of the images' sides."""
    images, outputs = (getattr(model, f"{end}_shape", None) for end in ("input", "output"))
    if not isinstance(outputs, tuple) or len(outputs) != 4 or outputs[1:3] != images[1:3]:
        raise ValueError(
            "`model` must return logits (batch, height, width, classes) of the images' sides, as "
            f"UperNet and LinearHead do. Received: {model.name!r} with outputs {outputs}."
        )


def to_model(image: np.ndarray, spec: ModelInput, size: tuple[int, int]) -> np.ndarray:
    """Return a uint8 image (height, width, channels) resized to `size` and normalized."""
    image = resize(with_channels(image, spec.channels), tuple(size), Image.Resampling.BILINEAR)
    return normalize(image, spec.preprocessing)


def _logits(
    model: keras.Model,
    images: Sequence[np.ndarray],
    changes: Sequence[Callable | None],
    mode: Mode,
    stride: int | tuple[int, int] | None,
    batch_size: int,
) -> list[np.ndarray]:
    """Return the logits of uint8 images, each changed by a function, at their own sizes."""
    if mode not in ("whole", "slide"):
        raise ValueError(f"`mode` must be 'whole' or 'slide'. Received: {mode!r}.")
    spec = ModelInput.of(model)
    inputs = []
    for image, change in zip(images, changes, strict=True):
        size = spec.size
        if mode == "slide":  # The smallest size of that aspect ratio that covers the input.
            ratio = max(new / old for new, old in zip(size, image.shape, strict=False))
            size = [max(n, round(o * ratio)) for n, o in zip(size, image.shape, strict=False)]
        one = to_model(image, spec, size)
        inputs.append(one if change is None else change(one[None])[0])
    if mode == "whole":
        logits = np.asarray(model.predict_on_batch(np.stack(inputs)), "float32")
    else:
        logits = [_slide(model, one, spec.size, stride, batch_size) for one in inputs]
    return [resize_logits(x, image.shape[:2]) for x, image in zip(logits, images, strict=True)]


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


def resize_logits(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize (height, width, classes) to `size`: bilinear, half-pixel centers."""
    # In NumPy, since JAX would compile it anew for each size of images.
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
