"""Mean intersection over union."""

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.renamed import renamed_arguments
from keras_vitx.segmentation.predict import Mode, check_segmenter, predict, predict_whole
from keras_vitx.segmentation.sources import IGNORED, load_dataset


class Counts:
    """Counts of pixels by true and predicted class, exact for any number of pixels.

    Args:
        classes: Number of classes.

    Attributes:
        matrix: int64 (classes, classes); rows are the true classes.
    """

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
        r"""Return the measures by name.

        With $n_{ij}$ pixels of class $i$ predicted as $j$, the intersection over union of a
        class is $n_{ii} / (\sum_j n_{ij} + \sum_j n_{ji} - n_{ii})$; its mean is over the
        classes that are in a mask or in a prediction.

        Returns:
            `"mean_iou"`; `"accuracy"` of the pixels; `"mean_accuracy"` over the classes in the
            masks; `"iou"`, one number per class, NaN for those that are in neither.
        """
        right = self.matrix.diagonal()
        true, predicted = self.matrix.sum(1), self.matrix.sum(0)
        with np.errstate(invalid="ignore"):
            iou = right / (true + predicted - right)
            recall = right / true
        if not true.any():
            raise ValueError("The masks have no pixel that is not ignored.")
        return {
            "mean_iou": float(np.nanmean(iou)),
            "accuracy": float(right.sum() / true.sum()),
            "mean_accuracy": float(np.nanmean(recall)),
            "iou": iou,
        }


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
    """Measure a model on images with masks, at the size of the masks.

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
        `Counts.measures`, with `"images"`, their number.

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
        if mode == "whole":
            found = predict_whole(model, images, changes)
        else:
            found = (
                predict(model, image, mode, stride, batch_size, change)
                for image, change in zip(images, changes, strict=True)
            )
        for mask, logits in zip(masks, found, strict=True):
            counts.add(mask, logits.argmax(-1))
    return {**counts.measures(), "images": masked.size}
