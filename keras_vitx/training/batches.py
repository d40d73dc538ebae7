"""Batches of any source: their labels, their number, and steps that change them."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.loading import Change, ImageBatches
from keras_vitx.training.devices import in_use


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
    rule = "`source` must have batches of images, whose labels are numbers."
    found = f"labels of shape {labels.shape} ({labels.dtype})"
    check(labels.ndim and labels.dtype.kind in "biuf", rule, found)
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


def map_batches(batches: Iterable, change: Change) -> keras.utils.PyDataset:
    """Return batches changed by a function, which is called in the thread that reads them."""
    known = isinstance(batches, (ImageBatches, UserBatches))
    return (batches if known else UserBatches(batches)).map(change)


def weigh(weights: np.ndarray, index: int, batch: tuple) -> tuple:
    """Return a batch whose sample weights are multiplied by those of the images' classes.

    An image of the label y has the weight `weights[y]`; of the soft label y, the sum of y_c w_c.
    """
    images, labels, *others = batch
    hard = np.asarray(labels["head"] if isinstance(labels, dict) else labels)
    is_soft = hard.ndim == 2 and hard.shape[1] > 1
    found = hard @ weights if is_soft else weights[hard.reshape(-1).astype("int64")]
    for other in others:
        found = found * np.reshape(other, -1)
    return images, labels, found.astype("float32")


class UserBatches(keras.utils.PyDataset):
    """A user's batches, a `PyDataset` or any iterable, as arrays that some steps change.

    Those of an iterable come in turn, whatever the index.
    """

    def __init__(self, batches: Iterable, changes: Sequence[Change] = ()):
        super().__init__()
        self.batches, self.changes, self.iterator = batches, tuple(changes), iter(())
        self.is_indexed = isinstance(batches, keras.utils.PyDataset)
        if self.is_indexed:
            self.on_epoch_begin = batches.on_epoch_begin
            self.on_epoch_end = batches.on_epoch_end

    def map(self, change: Change) -> "UserBatches":
        return UserBatches(self.batches, (*self.changes, change))

    @property
    def num_batches(self) -> int | None:
        return length_of(self.batches)

    def __getitem__(self, index: int) -> tuple:
        return self._change(index, self.batches[index] if self.is_indexed else self._next())

    def __iter__(self) -> Iterator[tuple]:
        """Yield the batches of one pass."""
        batches = self.batches
        if self.is_indexed:
            self.on_epoch_begin()
            batches = map(batches.__getitem__, range(self.num_batches))
        for index, batch in enumerate(batches):
            yield self._change(index, batch)
        self.on_epoch_end()

    def _change(self, index: int, batch: Any) -> tuple:
        batch = keras.tree.map_structure(_as_array, tuple(batch))
        for change in self.changes:
            batch = change(index, batch)
        return batch

    def _next(self) -> Any:
        for batch in self.iterator:
            return batch
        self.iterator = iter(self.batches)
        return next(self.iterator)


def reads_in_turn(batches: Iterable) -> bool:
    """Return whether batches have no index, by which Keras reads the first two of them twice."""
    batches = batches.batches if isinstance(batches, UserBatches) else batches
    return isinstance(batches, ImageBatches) or not isinstance(batches, keras.utils.PyDataset)


def one_pass(batches: Iterable) -> Iterable[tuple]:
    """Return what Keras's `evaluate` reads: a user's `PyDataset`, or batches of one pass."""
    if not reads_in_turn(batches):
        return batches
    is_known = isinstance(batches, (ImageBatches, UserBatches))
    return begin(functools.partial(iter, batches if is_known else UserBatches(batches)))


def stream_of(batches: Iterable, steps: int, start: int) -> Any:
    """Return what `model.fit` reads: endless batches, or a `PyDataset` that Keras begins again."""
    if isinstance(batches, ImageBatches):
        return begin(functools.partial(batches.stream, start))
    is_epoch = not reads_in_turn(batches) and length_of(batches) == steps
    return batches if is_epoch else begin(functools.partial(without_end, batches))


def begin(read: Callable[[], Iterator[tuple]]) -> Any:
    """Return `read()`, or, for replicas of TensorFlow, a `tf.data.Dataset` that calls it.

    Keras would lose the batch that it reads there before it begins.
    """
    if keras.backend.backend() != "tensorflow" or in_use().replicas == 1:
        return read()
    import tensorflow as tf

    first = next(read())
    spec = keras.tree.map_structure(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), first)
    return tf.data.Dataset.from_generator(read, output_signature=spec).prefetch(tf.data.AUTOTUNE)


def without_end(batches: Iterable) -> Iterator[tuple]:
    """Yield the batches of one pass after another, as `steps_per_epoch` need not divide them."""
    batches = batches if isinstance(batches, UserBatches) else UserBatches(batches)
    while True:
        count = 0
        for count, batch in enumerate(batches, 1):  # noqa: B007
            yield batch
        check(count, "`source` must give its batches again in each pass.", "none")


def _as_array(value):
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
