"""Batches that change others, whatever their source."""

import copy
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_vitx.data.loading import ImageBatches

log = logging.getLogger(__name__)


def first_of(batches: Any) -> Any:
    """Return the first batch; a ValueError if there is none."""
    if isinstance(batches, keras.utils.PyDataset):
        return batches[0]
    for batch in batches:
        return batch
    raise ValueError(
        f"`source` must have at least one batch. Received: an empty {type(batches).__name__}."
    )


def labels_and_size(batches: Any) -> tuple[np.ndarray, int]:
    """Return labels as they are in training batches, and the number of images of a batch.

    Those of a source are known; of your own batches, the first one is read.
    """
    if not isinstance(batches, ImageBatches):
        labels = labels_of(batches)
        return labels, len(labels)
    labels, soft = batches.split.labels, batches.loader.soft
    # Mixing makes rows of integers.
    labels = labels if soft is None or labels.ndim == 2 else np.eye(soft)[:1]
    return labels, batches.batch_size


def labels_of(batches: Any) -> np.ndarray:
    """Return the labels of the first batch; with several heads, those of the class token."""
    batch = first_of(batches)
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise ValueError(
            "`source` must have batches (images, labels) or (images, labels, weights). Received: "
            f"{type(batch).__name__}."
        )
    return np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])


def length_of(batches: Any) -> int | None:
    """Return the number of batches per epoch; None if it is unknown or endless."""
    try:  # A `DataLoader` always has `__len__`.
        length = getattr(batches, "num_batches", None) or len(batches)
    except TypeError:
        return None
    return None if length == sys.maxsize else length  # The length of endless Grain datasets.


def steps_of(batches: Any, steps_per_epoch: int | None = None) -> int:
    """Return the number of batches per epoch; a ValueError if it is unknown, or too small."""
    steps = length_of(batches)
    if steps_per_epoch is not None:
        if steps is not None and steps_per_epoch > steps:
            raise ValueError(
                f"`steps_per_epoch` must be at most the {steps} batches of an epoch. Received: "
                f"{steps_per_epoch}."
            )
        return steps_per_epoch
    if steps is None:
        raise ValueError(
            "`steps_per_epoch` must be set for batches whose number is unknown or endless. "
            f"Received: None, with a {type(batches).__name__}."
        )
    return steps


class SequentialBatches(keras.utils.PyDataset):
    """An iterable as a dataset: each access returns the next batch, whatever its index."""

    is_sequential = True

    def __init__(self, batches: Iterable):
        super().__init__()
        self.iterable, self.iterator = batches, iter(())

    def __len__(self) -> int:
        return len(self.iterable)

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None if it is unknown."""
        return length_of(self.iterable)

    def __getitem__(self, index: int) -> Any:
        batch = next(self.iterator, None)
        if batch is None:
            self.iterator = iter(self.iterable)
            batch = next(self.iterator, None)
        if batch is None:
            raise ValueError(
                "`batches` must be an iterable that can be iterated repeatedly. Received: an empty "
                f"or exhausted {type(self.iterable).__name__}."
            )
        return batch


class BatchTransform(keras.utils.PyDataset):
    """Batches changed by `transform(images, labels, index)`, an argument or a subclass's method.

    Batches are `(images, labels)` or `(images, labels, weights)`; labels are an array or a
    dictionary. All other attributes are those of the wrapped batches. `elementwise` says whether
    `transform` treats each image independently, so that it can be applied to a shard of a batch;
    `keeps_images`, that it changes labels only, whatever the images.
    """

    transform: Callable[[np.ndarray, Any, int], tuple[Any, Any]]
    elementwise = keeps_images = False

    def __init__(self, batches: Iterable, transform: Any = None, elementwise: bool | None = None):
        super().__init__()
        is_indexed = isinstance(batches, keras.utils.PyDataset)
        self.batches = batches if is_indexed else SequentialBatches(batches)
        self._epoch = 0
        if transform is not None:
            self.transform, self.elementwise = transform, elementwise

    @property
    def epoch(self) -> int:
        """The current epoch: that of the wrapped batches, or counted here if they have none."""
        return getattr(self.batches, "epoch", self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def with_batches(self, batches: Iterable) -> "BatchTransform":
        """Return a copy that wraps other batches."""
        wrapped = copy.copy(self)
        wrapped.batches = batches
        return wrapped

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None if the wrapped batches are endless."""
        return self.batches.num_batches

    def __getitem__(self, index: int) -> tuple:
        images, labels, *weights = self.wrapped_batch(index)
        return *self.transform(images, labels, index), *weights

    def wrapped_batch(self, index: int) -> tuple:
        """Return batch `index` of the wrapped batches, as arrays."""
        return keras.tree.map_structure(_as_array, tuple(self.batches[index]))

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def on_epoch_begin(self) -> None:
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self.batches.on_epoch_end()


def _as_array(value):
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
