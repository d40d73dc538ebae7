"""Input pipelines: batches of training, validation and test images from a source."""

import logging
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vitx.data.augmentation import Augmentation, augmentation_named, function_of
from keras_vitx.data.batches import EvaluationBatches, TrainingBatches
from keras_vitx.data.parts import Part, Source
from keras_vitx.data.sources import open_source
from keras_vitx.preprocessing import ModelInput

log = logging.getLogger(__name__)


class Pipelines(NamedTuple):
    """Batches of (images, labels) for `fit` and `evaluate`, and facts about them.

    The batches made by `pipelines` are NumPy arrays: float32 images (batch, height, width,
    channels), normalized for the model, and labels in one of the forms of `Part.labels`.
    Custom batches may be anything that `fit` of Keras takes; `Pipelines(train)` is enough.

    Attributes:
        train: Training batches, reshuffled in each epoch and augmented, all of them full.
        validation: Batches that select the best epoch, in the order of the source, or
            None. The last one may be smaller.
        class_names: Label i means `class_names[i]`; None if there are no class names.
        train_size: Number of training images; None if unknown.
        validation_size: Number of validation images, or None.
        skipped: Files that were skipped because they can't be decoded.
        test: The test part of the source, in order, or None. It is used by `evaluate`,
            never in training.
        test_size: Number of test images, or None.
    """

    train: keras.utils.PyDataset
    validation: keras.utils.PyDataset | None = None
    class_names: tuple[str, ...] | None = None
    train_size: int | None = None
    validation_size: int | None = None
    skipped: tuple[Path, ...] = ()
    test: keras.utils.PyDataset | None = None
    test_size: int | None = None


def pipelines(
    source,
    model,
    batch_size: int = 64,
    *,
    augmentation: str | Augmentation | None = "crop_flip",
    seed: int = 0,
    validation_split: float = 0.1,
    strict: bool = False,
    pad: bool = False,
) -> Pipelines:
    """Return the training, validation and test batches of `source` for `model`.

    Validation and test images go through the model's evaluation transform, as in
    `preprocess_input`. A training epoch uses each image at most once, in a new order, and
    drops the remainder that doesn't fill a batch; if there are fewer images than one
    batch, they form a single smaller batch. A training batch depends only on the seed, the
    epoch and its index; see `keras_vitx.data.batches.Batches` for how epochs are counted.

    A part that takes at most 512 MiB at the model's input size is kept in memory; the
    images of larger parts are decoded in threads on demand.

    Args:
        source: Anything that `open_source` takes or returns.
        model: A model of keras_vitx, of which the `input_shape`, the `preprocessing` and
            the number of outputs are used.
        batch_size: Number of images per batch.
        augmentation: "crop_flip" (shifts by up to an eighth, horizontal flips),
            "random_resized_crop" (a random window of 8 % to 100 % of the area of the
            original image), or None for the evaluation transform.
        seed: Seed of the order, the augmentation and the split.
        validation_split: As in `open_source`.
        strict: As in `open_source`.
        pad: Whether to fill the last validation and test batch with black images, and to
            add weights (batch,) to each batch: 1 for an image, 0 for padding. Needed by
            `keras.distribution`, which splits batches evenly between devices.

    Raises:
        ValueError: if an argument is out of range, the source is invalid, or it has more
            classes than the model has outputs.
        OSError: if a file can't be read.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer of 1 or more, got {batch_size!r}.")
    augment = function_of(augmentation_named(augmentation))
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed: expected an integer of 0 or more, got {seed!r}.")
    facts = ModelInput.of(model)
    if not isinstance(source, Source):
        source = open_source(source, validation_split=validation_split, strict=strict, seed=seed)
    _check_classes(source, model)

    def in_order(part: Part | None) -> tuple[EvaluationBatches | None, int | None]:
        if part is None:
            return None, None
        return EvaluationBatches(part, facts, batch_size, pad), part.size

    validation, validation_size = in_order(source.validation)
    test, test_size = in_order(source.test)
    return Pipelines(
        TrainingBatches(source.train, facts, batch_size, augment, seed),
        validation,
        source.class_names,
        source.train.size,
        validation_size,
        source.skipped,
        test,
        test_size,
    )


def _check_classes(source: Source, model) -> None:
    outputs = model.output_shape[-1]
    # A single output may be binary classification or regression.
    if source.class_names is None or outputs == 1:
        return
    classes = len(source.class_names)
    if classes > outputs:
        raise ValueError(
            f"model: it has {outputs} outputs, but the source {source.name} has {classes} classes. "
            f"Make the model with classes={classes}."
        )
    if classes < outputs:
        log.warning(
            "The source %s has %d classes, the model %d outputs.", source.name, classes, outputs
        )
