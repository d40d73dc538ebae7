"""Input pipelines: batches of training, validation and test images from a source."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_vitx.checks import check
from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.mixing import Mixing
from keras_vitx.data.sources import load_dataset
from keras_vitx.preprocessing import ModelInput

if TYPE_CHECKING:
    import keras

log = logging.getLogger(__name__)


class Pipelines(NamedTuple):
    """Batches of (images, labels) for `fit` and `evaluate`, with their metadata.

    `pipelines` makes float32 images (batch, height, width, channels), normalized for the model, and
    labels as in `Split.labels`. Your own, `Pipelines(train)`, may be what Keras's `fit` accepts.

    Attributes:
        train: Training batches, reshuffled in each epoch and augmented, all of them full.
        validation: Batches that select the best epoch, in the order of the source, or None.
        class_names: Label i means `class_names[i]`; None if there are no class names.
        skipped: Image files of formats that Pillow can't read.
        test: The test split of the source, in order, for `evaluate` only; or None.
    """

    train: "keras.utils.PyDataset"
    validation: "keras.utils.PyDataset | None" = None
    class_names: tuple[str, ...] | None = None
    skipped: tuple[Path, ...] = ()
    test: "keras.utils.PyDataset | None" = None


def pipelines(
    source,
    model,
    batch_size: int = 64,
    *,
    augmentation: str | Augmentation | Mapping[str, Any] | None = "crop_flip",
    mixing: Mixing | Mapping[str, Any] | None = None,
    validation_split: float | Iterable[str | int] = 0.1,
    seed: int = 0,
    workers: int = 0,
    pixels: bool = False,
) -> Pipelines:
    """Return the training, validation and test batches of `source` for `model`.

    Validation and test images go through the model's evaluation transform, as in
    `preprocess_input`. A training epoch uses each image at most once, in a new order, and drops the
    remainder that doesn't fill a batch; fewer images than one batch form a single smaller batch. A
    training batch depends only on the seed, the epoch and its index (`loading.ImageBatches`). Up to
    512 MiB of decoded images are cached per split.

    Args:
        source: Anything that `load_dataset` accepts or returns.
        model: A model of keras_vitx: its `input_shape`, `preprocessing` and number of outputs.
        batch_size: Number of images per batch.
        augmentation: An `Augmentation`, or its name: "crop_flip" (shifts by up to an eighth,
            horizontal flips), "random_resized_crop" (a random window of 8 % to 100 % of the area of
            the original image), "rand_augment" (that, RandAugment and random erasing, as DeiT),
            "keras_cv" (the same with the layers of keras-cv); or None for the evaluation transform.
        mixing: A `Mixing` (MixUp and CutMix), or None. With mixing, the labels of all splits are
            float32 (batch, classes).
        validation_split: As in `load_dataset`, if the source has no validation images.
        seed: Seed of the order, the augmentation and the split.
        workers: Number of processes that make training batches; 0 for threads of this process,
            which Python's lock slows down from about four cores on. Processes copy arrays, and
            start by importing the main module: a script needs `if __name__ == "__main__":`.
        pixels: Whether images are uint8 pixels with the statistics that normalize them
            (`keras_vitx.pixels`), a quarter of the bytes, which a `Chain` takes in `fit`.

    Raises:
        ValueError: if an argument is out of range, the source is invalid, or it has more classes
            than the model has outputs.
        OSError: if a file can't be read.
    """
    from keras_vitx.data.loading import ImageBatches, Loader  # imports Keras

    augmentation, mixing = Augmentation.of(augmentation), Mixing.of(mixing)
    spec, classes = ModelInput.of(model), model.output_shape[-1]
    source = load_dataset(source, validation_split=validation_split, seed=seed)
    names = source.class_names or ()
    # A single output may be binary classification or regression.
    rule = f"`model` must have an output for each class of {source.name}: classes={len(names)}."
    check(classes == 1 or len(names) <= classes, rule, classes)
    if names and len(names) < classes:
        text = "The source %s has %d classes, the model %d outputs."
        log.warning(text, source.name, len(names), classes)
    options = {"soft": None if mixing is None else classes, "strict": source.strict}
    train = Loader(
        source.train, spec, batch_size, augmentation, mixing, seed, workers=workers, **options
    )
    validation, test = (
        split and ImageBatches(Loader(split, spec, batch_size, **options), pixels)
        for split in (source.validation, source.test)
    )
    train = ImageBatches(train, pixels)
    return Pipelines(train, validation, source.class_names, source.skipped, test)
