"""Batches that change other batches."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np


class Wrapped(keras.utils.PyDataset):
    """Batches with other labels or images; a subclass defines `changed`.

    All other attributes are those of the batches inside.

    Args:
        batches: Batches `(images, labels)` or `(images, labels, weights)`: a
            `keras.utils.PyDataset`, or an iterable that can be iterated repeatedly. Of the
            latter, each access returns the next batch, whatever its index.

    Attributes:
        by_image: Whether `changed` may be given a share of a batch, because it treats each
            image alone.
    """

    by_image = False

    def __init__(self, batches: Iterable):
        super().__init__(workers=1)
        self.batches = batches
        self._turn: Iterator | None = None
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The current epoch: of the batches inside, or counted here if they don't."""
        return getattr(self.batches, "epoch", self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch."""
        self._epoch = epoch
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def changed(self, images: np.ndarray, labels: Any, index: int) -> tuple[Any, Any]:
        """Return the images and the labels of batch `index` as they should be.

        Args:
            images: float32 `(batch, height, width, channels)`.
            labels: An array, or a dictionary of arrays.
            index: Index of the batch in the epoch.
        """
        raise NotImplementedError

    def around(self, batches: Iterable) -> "Wrapped":
        """Return the same around other batches."""
        twin = copy.copy(self)
        twin.batches = batches
        return twin

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None if the batches inside are endless."""
        if isinstance(self.batches, keras.utils.PyDataset):
            return self.batches.num_batches
        try:
            return len(self.batches)
        except TypeError:
            return None

    def __getitem__(self, index: int) -> tuple:
        images, labels, *weights = self.inside(index)
        return *self.changed(images, labels, index), *weights

    def inside(self, index: int) -> tuple:
        """Return batch `index` of the batches inside, as arrays."""
        return keras.tree.map_structure(_as_array, tuple(self._batch(index)))

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def on_epoch_begin(self) -> None:
        """Begin an epoch of the batches inside."""
        if isinstance(self.batches, keras.utils.PyDataset):
            self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """End an epoch of the batches inside."""
        self._epoch += 1
        if isinstance(self.batches, keras.utils.PyDataset):
            self.batches.on_epoch_end()

    def _batch(self, index):
        if isinstance(self.batches, keras.utils.PyDataset):
            return self.batches[index]
        batch = None if self._turn is None else next(self._turn, None)
        if batch is None:
            self._turn = iter(self.batches)
            batch = next(self._turn, None)
        if batch is None:
            raise ValueError(
                "`batches` must be an iterable that can be iterated repeatedly. Received: an empty "
                f"or exhausted {type(self.batches).__name__}."
            )
        return batch


def _as_array(value):
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
