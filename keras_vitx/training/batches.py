"""Batches of any source: their labels, their number, and steps that change them."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.loading import ImageBatches

Change = Callable[[int, tuple], tuple]
"""A function of the index and the batch, (images, labels) or (images, labels, weights)."""


def labels_and_size(batches: Any) -> tuple[np.ndarray, int]:
    """Return labels as they are in the batches, and the number of images of a batch.

    Those of a source are known; of your own batches, the first one is read. With several heads,
    labels are those of the class token.
    """
    if isinstance(batches, ImageBatches):
        labels, soft = batches.split.labels, batches.loader.soft
        # Mixing makes rows of integers.
        labels = labels if soft is None or labels.ndim == 2 else np.eye(soft)[:1]
        return labels, batches.batch_size
    is_indexed = isinstance(batches, keras.utils.PyDataset)
    batch = batches[0] if is_indexed else next(iter(batches), None)
    is_labeled = isinstance(batch, (tuple, list)) and len(batch) in (2, 3)
    rule = "`source` must have batches (images, labels) or (images, labels, weights)."
    check(is_labeled, rule, type(batch))
    labels = np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])
    return labels, len(labels)


def length_of(batches: Any) -> int | None:
    """Return the number of batches per epoch; None if it is unknown or endless."""
    if isinstance(batches, keras.utils.PyDataset):
        return batches.num_batches
    try:  # A `DataLoader` always has `__len__`.
        length = len(batches)
    except TypeError:
        return None
    return None if length == sys.maxsize else length  # The length of endless Grain datasets.


def steps_of(batches: Any, steps_per_epoch: int | None = None) -> int:
    """Return the number of batches per epoch; a ValueError if it is unknown, or too small."""
    length = length_of(batches)
    steps = length if steps_per_epoch is None else steps_per_epoch
    check(steps is not None, "`steps_per_epoch` must be set for batches of unknown number.", steps)
    rule = f"`steps_per_epoch` must be at most the {length} batches of an epoch."
    check(length is None or steps <= length, rule, steps)
    return steps


def map_batches(batches: Iterable, change: Change) -> keras.utils.PyDataset:
    """Return batches changed by a function, which is called in the thread that reads them."""
    known = isinstance(batches, (ImageBatches, OwnBatches))
    return (batches if known else OwnBatches(batches)).map(change)


class OwnBatches(keras.utils.PyDataset):
    """Your own batches, a `PyDataset` or any iterable, as arrays that some steps change.

    Those of an iterable come in turn, whatever the index.
    """

    def __init__(self, batches: Iterable, changes: Sequence[Change] = ()):
        super().__init__()
        self.batches, self.changes, self.iterator = batches, tuple(changes), iter(())
        self.is_indexed = isinstance(batches, keras.utils.PyDataset)

    def map(self, change: Change) -> "OwnBatches":
        return OwnBatches(self.batches, (*self.changes, change))

    @property
    def num_batches(self) -> int | None:
        return length_of(self.batches)

    def __getitem__(self, index: int) -> tuple:
        batch = self.batches[index] if self.is_indexed else self._next()
        batch = keras.tree.map_structure(_as_array, tuple(batch))
        for change in self.changes:
            batch = change(index, batch)
        return batch

    def _next(self) -> Any:
        for batch in self.iterator:
            return batch
        self.iterator = iter(self.batches)
        return next(self.iterator)

    def on_epoch_begin(self) -> None:
        if self.is_indexed:
            self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        if self.is_indexed:
            self.batches.on_epoch_end()


def _as_array(value):
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
