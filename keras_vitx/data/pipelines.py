"""From a source to what `fit` takes: batches of training and validation images."""

import logging
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vitx.data.augmentation import augmentation_named
from keras_vitx.data.batches import EvaluationBatches, TrainingBatches
from keras_vitx.data.parts import Part, Source
from keras_vitx.data.sources import open_source
from keras_vitx.preprocessing import ModelInput

log = logging.getLogger(__name__)


class Pipelines(NamedTuple):
    """Batches of (images, labels) for `fit` and `evaluate`, and facts about them.

    Those that `pipelines` makes hold NumPy arrays: images are float32 (batch,
    height, width, channels), normalised for the model; labels have the form of
    `Part.labels`. Your own may be anything that Keras's `fit` takes, and
    `Pipelines(train)` alone is enough.

    Attributes:
        train: Shuffled anew in each epoch and augmented; every batch is full.
        validation: What chooses the best epoch, in the order of the source, the
            last batch may be smaller; or None.
        class_names: Label i means `class_names[i]`; None where the classes have no
            names or there are none.
        train_size: The number of training images; None where it isn't known.
        validation_size: The number of validation images, or None.
        skipped: Files left out because they can't be decoded.
        test: The test part of the source, in its order, or None. Training never
            sees it: it is for `evaluate`.
        test_size: The number of test images, or None.
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
    augmentation: str | None = "crop_flip",
    seed: int = 0,
    validation_split: float = 0.1,
    strict: bool = False,
    pad: bool = False,
) -> Pipelines:
    """Return the training, validation and test batches of `source`, made for `model`.

    Validation and test images go through the model's evaluation transform, as in
    `preprocess_input`. A training epoch takes every image at most once, in a new
    order, and leaves out the images that don't fill a batch; where there are
    fewer images than one batch, they form a single smaller batch. A training
    batch depends only on the seed, the epoch and its index; see
    `keras_vitx.data.batches.Batches` for how epochs are counted.

    A part that takes at most 512 MiB at the model's size is kept in memory;
    images of larger parts are decoded in threads when they are needed.

    Args:
        source: Anything that `open_source` takes or returns.
        model: A model of keras_vitx. Its `input_shape`, its `preprocessing` and
            its number of outputs are read.
        batch_size: The number of images per batch.
        augmentation: "crop_flip" (shifts by up to an eighth, flips half of the
            time), "random_resized_crop" (a random window of 8 % to 100 % of the
            area of the original image), or None for the evaluation transform.
        seed: The seed of the order, the augmentation and the split.
        validation_split: As in `open_source`.
        strict: As in `open_source`.
        pad: Fill the last batch of validation and test with black images, and add
            weights (batch,) to each batch: 1 for an image, 0 for padding. It is
            for `keras.distribution`, whose devices take equal shares of a batch.

    Raises:
        ValueError: for an argument out of range, for a source that can't be
            used, or for one with more classes than the model has outputs.
        OSError: when a file can't be read.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer of 1 or more, got {batch_size!r}.")
    augment = augmentation_named(augmentation)
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
    # One output may tell two classes apart, or predict a number.
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
