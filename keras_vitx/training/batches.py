"""Batches of any source: their labels, their number, and steps that change them."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.loading import Change, ImageBatches


def labels_and_size(batches: Any) -> tuple[np.ndarray, int]:
    """Return labels as they are in the batches, and the number of images of a batch.

    Those of a source are known; of your own batches, the first one is read. With several heads,
    labels are those of the class token.
    """
    if isinstance(batches, ImageBatches):
        labels, soft = batches.loader.split.labels, batches.loader.soft
        # Mixing makes rows of integers.
        labels = labels if soft is None or labels.ndim == 2 else np.eye(soft)[:1]
        return labels, batches.loader.batch_size
    batch = next(iter(batches), None)
    is_labeled = isinstance(batch, (tuple, list)) and len(batch) in (2, 3)
    rule = "`source` must have batches (images, labels) or (images, labels, weights)."
    check(is_labeled, rule, type(batch))
    labels = np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])
    rule = "`source` must have batches of images, whose labels are numbers."
    received = f"labels of shape {labels.shape} ({labels.dtype})"
    check(labels.ndim and labels.dtype.kind in "biuf", rule, received)
    return labels, len(labels)


def length_of(batches: Any) -> int | None:
    """Return the number of batches per epoch; None if it is unknown or endless."""
    try:  # A `DataLoader` always has `__len__`.
        length = len(batches)
    except TypeError:
        return None
    return None if length == sys.maxsize else length  # The length of endless Grain datasets.


def weigh(weights: np.ndarray, index: int, batch: tuple) -> tuple:
    """Return a batch whose sample weights are multiplied by those of the images' classes.

    An image of the label y has the weight `weights[y]`; of the soft label y, the sum of y_c w_c.
    """
    images, labels, *others = batch
    hard = np.asarray(labels["head"] if isinstance(labels, dict) else labels)
    is_soft = hard.ndim == 2 and hard.shape[1] > 1
    of_images = hard @ weights if is_soft else weights[hard.reshape(-1).astype("int64")]
    for other in others:
        of_images = of_images * np.reshape(other, -1)
    return images, labels, of_images.astype("float32")


class UserBatches:
    """A user's batches, any iterable or a `PyDataset`, as arrays that some steps change.

    They are read as `ImageBatches` are: an iteration is one pass, and a stream has no end. A
    `PyDataset` is told where its epochs begin and end, as by Keras.
    """

    def __init__(self, batches: Iterable, changes: Sequence[Change] = ()):
        self.batches, self.changes = batches, tuple(changes)

    def map(self, change: Change) -> "UserBatches":
        """Return these batches changed by a function, called in the thread that reads them."""
        return UserBatches(self.batches, (*self.changes, change))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple]:
        return self._epoch(self._pass())

    def stream(self, step: int = 0, steps: int | None = None) -> Iterator[tuple]:
        """Yield epochs of so many steps (None: a pass); the first pass begins with the stream."""
        batches, steps = self._passes(), steps or length_of(self) or None
        while True:
            yield from self._epoch(itertools.islice(batches, steps))

    def _epoch(self, batches):
        """Yield the batches of an epoch, which ends when they are asked for more or dropped."""
        is_dataset = isinstance(self.batches, keras.utils.PyDataset)
        told = self.batches if is_dataset else keras.utils.PyDataset()
        told.on_epoch_begin()
        try:
            yield from batches
        finally:
            told.on_epoch_end()

    def _passes(self):
        while True:
            batch = None
            for batch in self._pass():
                yield batch
            check(batch, "`source` must give its batches again in each pass.", "none")

    def _pass(self):
        batches = self.batches
        if isinstance(batches, keras.utils.PyDataset):  # By as many threads as `workers` says.
            from grain import MapDataset, ReadOptions

            threads = batches.workers if batches.workers > 1 else 0
            options = ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
            length = length_of(batches)
            steps = MapDataset.range(sys.maxsize if length is None else length)
            batches = steps.map(batches.__getitem__).to_iter_dataset(options)
        for index, batch in enumerate(batches):
            batch = keras.tree.map_structure(as_array, tuple(batch))
            for change in self.changes:
                batch = change(index, batch)
            yield batch


Batches = ImageBatches | UserBatches


def as_batches(batches: Any) -> Batches:
    """Return batches with `map`, `stream` and the iteration of one pass, as arrays."""
    return batches if isinstance(batches, Batches) else UserBatches(batches)


def as_array(value: Any) -> np.ndarray:
    """Return a tensor of any library as an array."""
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
