"""From a source to what `fit` takes: batches of training and validation images."""

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_vitx.data.augmentation import augmentation_named, random_resized_crop
from keras_vitx.data.parts import Part, Source
from keras_vitx.data.preprocessing import Preprocessing, fit_to_model, normalize, with_channels
from keras_vitx.data.sources import open_source
from keras_vitx.text import needs_extra

if TYPE_CHECKING:
    import tensorflow as tf

# A part that takes no more than this at the model's size is decoded and resized once.
IN_MEMORY_BYTES = 512 * 2**20
log = logging.getLogger(__name__)


class Pipelines(NamedTuple):
    """The two datasets, which yield (images, labels), and what is known of them.

    Images are float32 (batch, height, width, channels), normalised for the
    model; labels are int32 (batch,).

    Attributes:
        train: Shuffled anew in each epoch, augmented; every batch is full.
        validation: In the order of the source; the last batch may be smaller.
        class_names: Label i is `class_names[i]`.
        train_size: The number of training images.
        validation_size: The number of validation images.
        skipped: The files left out because they can't be decoded.
    """

    train: "tf.data.Dataset"
    validation: "tf.data.Dataset"
    class_names: tuple[str, ...]
    train_size: int
    validation_size: int
    skipped: tuple[Path, ...]


def pipelines(
    source,
    model,
    batch_size: int = 64,
    *,
    augmentation: str | None = "crop_flip",
    seed: int = 0,
    validation_split: float = 0.1,
    strict: bool = False,
) -> Pipelines:
    """Return the training and the validation batches of `source`, made for `model`.

    Validation images go through the model's evaluation transform, as in
    `preprocess_input`. An epoch of training takes every image once, in an order
    of its own, and leaves out the images that don't fill a batch; when there
    are less than one batch of them, it is one smaller batch. The same seed
    gives the same batches, epoch after epoch. TensorFlow runs on the CPU here,
    whatever the backend of Keras.

    Args:
        source: What `open_source` takes, or what it gave.
        model: A model of keras_vitx: its `input_shape`, its `preprocessing` and
            its number of classes are read.
        batch_size: The number of images in a batch.
        augmentation: "crop_flip" (shifted by up to an eighth, flipped by
            chance), "random_resized_crop" (a random window of 8 % to 100 % of
            the area), or None for the evaluation transform.
        seed: The seed of the order, the augmentation and the split.
        validation_split: As in `open_source`.
        strict: As in `open_source`.

    Raises:
        ValueError: when an argument is out of range, when the source can't be
            used, or when it has more classes than the model has outputs.
        OSError: when a file can't be read.
        ImportError: when TensorFlow is missing.
    """
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer of 1 or more, got {batch_size!r}.")
    augment = augmentation_named(augmentation)
    facts = Preprocessing.of(model)
    tf = _tensorflow()
    if not isinstance(source, Source):
        source = open_source(source, validation_split=validation_split, strict=strict, seed=seed)
    _check_classes(source, model)

    with tf.device("CPU"):
        train = _train(tf, source.train, facts, batch_size, augment, seed)
        validation = _validation(tf, source.validation, facts, batch_size)
    return Pipelines(
        train,
        validation,
        source.class_names,
        source.train.size,
        source.validation.size,
        source.skipped,
    )


def _tensorflow():
    import keras

    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(needs_extra("Pipelines need TensorFlow", "data")) from error
    if keras.backend.backend() != "tensorflow":
        # The GPU's memory belongs to the backend. Too late once TensorFlow has begun to use it.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
    return tf


def _check_classes(source: Source, model) -> None:
    classes, outputs = len(source.class_names), model.output_shape[-1]
    if classes > outputs:
        raise ValueError(
            f"model: it has {outputs} outputs, but the source {source.name} has {classes} classes. "
            f"Make the model with classes={classes}."
        )
    if classes < outputs:
        log.warning(
            "The source %s has %d classes, the model %d outputs.", source.name, classes, outputs
        )


def _train(tf, part: Part, facts: Preprocessing, batch_size: int, augment, seed: int):
    n, batch_size = part.size, min(batch_size, part.size)
    steps = n // batch_size
    crop_ratio = facts.crop_ratio if augment is None else 1.0
    epochs = iter(range(2**31))

    def epoch():
        # An epoch is a permutation cut in batches. Not tf.data's own shuffle, whose
        # order depends on the global seed too and whose buffer holds images.
        random = np.random.default_rng((seed, next(epochs)))
        order = random.permutation(n)
        for step in range(steps):
            seeds = random.integers(2**31, size=(batch_size, 2), dtype="int32")
            yield order[step * batch_size : (step + 1) * batch_size], seeds

    dataset = tf.data.Dataset.from_generator(
        epoch,
        output_signature=(
            tf.TensorSpec((batch_size,), tf.int64),
            tf.TensorSpec((batch_size, 2), tf.int32),
        ),
    )
    labels = tf.constant(part.labels)
    # A random window is cut from the image itself, not from one shrunk to the model's size.
    crop_raw = augment is random_resized_crop and not _fits(part, facts)
    images = None if crop_raw else _in_memory(part, facts, crop_ratio)
    if images is not None:
        images = tf.constant(images)
        dataset = dataset.map(lambda i, seeds: (tf.gather(images, i), tf.gather(labels, i), seeds))
    else:
        load = _loader(tf, part, facts, None if crop_raw else crop_ratio)

        def load_one(index, seed):
            image = load(index)
            if crop_raw:
                image = augment(image, seed, facts.size)
            return image, labels[index], seed

        dataset = dataset.unbatch().map(load_one, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.batch(batch_size, drop_remainder=True)

    def finish(images, labels, seeds):
        if augment is not None and not crop_raw:
            images = augment(images, seeds[0])
        return _normalized(tf, images, facts), labels

    dataset = dataset.map(finish, num_parallel_calls=tf.data.AUTOTUNE)
    return _countable(tf, dataset, steps)


def _validation(tf, part: Part, facts: Preprocessing, batch_size: int):
    images = _in_memory(part, facts, facts.crop_ratio)
    if images is not None:
        dataset = tf.data.Dataset.from_tensor_slices((images, part.labels))
    else:
        load = _loader(tf, part, facts, facts.crop_ratio)
        dataset = tf.data.Dataset.from_tensor_slices((np.arange(part.size), part.labels))
        dataset = dataset.map(
            lambda index, label: (load(index), label), num_parallel_calls=tf.data.AUTOTUNE
        )
    dataset = dataset.batch(batch_size).map(
        lambda images, labels: (_normalized(tf, images, facts), labels)
    )
    return _countable(tf, dataset, -(-part.size // batch_size))


def _fits(part: Part, facts: Preprocessing) -> bool:
    """Whether the images are an array of the model's size and channels already."""
    shape = (part.size, *facts.size, facts.channels)
    return isinstance(part.images, np.ndarray) and part.images.shape == shape


def _in_memory(part: Part, facts: Preprocessing, crop_ratio: float) -> np.ndarray | None:
    """Return all images at the model's size, uint8, or None where they take too much memory."""
    shape = (part.size, *facts.size, facts.channels)
    if np.prod(shape, dtype="int64") > IN_MEMORY_BYTES:
        return None
    if _fits(part, facts) and crop_ratio == 1:
        return part.images
    resized = np.empty(shape, "uint8")

    def fill(index: int) -> None:
        resized[index] = fit_to_model(part.images[index], facts, crop_ratio)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(part.size)):
            pass
    return resized


def _loader(tf, part: Part, facts: Preprocessing, crop_ratio: float | None):
    """Return a function from an index to an image, at its own size where no ratio is given."""
    shape = (*(facts.size if crop_ratio else (None, None)), facts.channels)

    def load(index):
        image = part.images[index]
        if crop_ratio is None:
            return with_channels(image, facts.channels)
        return fit_to_model(image, facts, crop_ratio)

    def load_tensor(index):
        return tf.ensure_shape(tf.numpy_function(load, [index], tf.uint8), shape)

    return load_tensor


def _normalized(tf, images, facts: Preprocessing):
    return normalize(tf.cast(images, tf.float32), facts.mean, facts.std)


def _countable(tf, dataset, steps: int):
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE)
