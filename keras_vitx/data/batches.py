"""Batches of images and labels as a `keras.utils.PyDataset`, prefetched in threads."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import keras
import numpy as np

from keras_vitx.data.augmentation import DRAWS, random_resized_crop
from keras_vitx.data.parts import Part
from keras_vitx.data.preprocessing import fit_to_model, normalize, with_channels
from keras_vitx.preprocessing import ModelInput

# The images of a part are kept in memory if they take no more than this.
IN_MEMORY_BYTES = 512 * 2**20
# Number of batches to prefetch.
AHEAD = 2


class Batches(keras.utils.PyDataset):
    """Batches that are a function of the epoch and the index only.

    `batches[i]` waits for batch i of the current epoch and prefetches the next ones in a
    background thread, which decodes images in a thread pool. The workers of Keras are not
    used, since they mix batches of two epochs.

    A full iteration ends with `on_epoch_end`, as in `fit` of Keras, and so starts the next
    epoch.

    Attributes:
        epoch: The current epoch. `fit` of Keras calls `on_epoch_end` once before the first
            epoch as well. To keep in step with Keras, call `set_epoch` in the
            `on_epoch_begin` of a callback.
    """

    def __init__(self):
        super().__init__(workers=1)
        self.epoch = 0
        self._lock = threading.Lock()
        self._maker = ThreadPoolExecutor(1, "batches")
        self._made: dict[tuple[int, int], Future] = {}

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        raise NotImplementedError

    def make(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        """Return batch `index` of an epoch. Called in the background thread only."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        with self._lock:
            made, self._made = self._made, {}
            for ahead in range(index, min(index + AHEAD + 1, len(self))):
                key = self.epoch, ahead
                self._made[key] = made.pop(key, None) or self._maker.submit(self.make, *key)
            for future in made.values():
                future.cancel()
            batch = self._made.pop((self.epoch, index))
        return batch.result()

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        """Start the next epoch."""
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch."""
        self.epoch = epoch


class TrainingBatches(Batches):
    """Shuffled and augmented images, in full batches only.

    Batch i of epoch e is the i-th slice of a permutation seeded by (seed, e), augmented
    with random numbers seeded by (seed, e, i).

    Args:
        part: The images and their labels.
        facts: The size, channels and preprocessing of the model.
        batch_size: Number of images per batch, at most the number of images.
        augment: An augmentation, or None for the evaluation transform.
        seed: Seed of the order and the augmentation.
    """

    def __init__(
        self,
        part: Part,
        facts: ModelInput,
        batch_size: int,
        augment: Callable | None,
        seed: int,
    ):
        super().__init__()
        self.part, self.facts, self.augment, self.seed = part, facts, augment, seed
        self.batch_size = min(batch_size, part.size)

    def __len__(self) -> int:
        return self.part.size // self.batch_size

    @functools.cached_property
    def images(self) -> Sequence[np.ndarray]:
        """The images before augmentation."""
        # A random window is cropped from the original image, not from a resized one.
        if self.augment is random_resized_crop:
            return Originals(self.part.images, self.facts.channels)
        return at_size(
            self.part, self.facts, self.facts.preprocessing.crop_ratio if not self.augment else 1.0
        )

    def make(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self.batch_size
        chosen = order(self.seed, epoch, self.part.size)[start : start + self.batch_size]
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        draws = random.random((len(chosen), DRAWS))

        def image(i: int) -> np.ndarray:
            image = self.images[chosen[i]]
            return image if self.augment is None else self.augment(image, self.facts.size, draws[i])

        return stacked(image, len(chosen), self.facts, self.images), self.part.labels[chosen]


class EvaluationBatches(Batches):
    """Images in order, with the evaluation transform; the last batch may be smaller.

    Args:
        part: The images and their labels.
        facts: The size, channels and preprocessing of the model.
        batch_size: Number of images per batch.
        pad: Whether to fill the last batch with black images of weight 0, for devices
            that share a batch. Batches are then (images, labels, weights), with
            float32 weights (batch,): 1 for an image, 0 for padding.
    """

    def __init__(self, part: Part, facts: ModelInput, batch_size: int, pad: bool = False):
        super().__init__()
        self.part, self.facts, self.batch_size, self.pad = part, facts, batch_size, pad

    def __len__(self) -> int:
        return -(-self.part.size // self.batch_size)

    @functools.cached_property
    def images(self) -> Sequence[np.ndarray]:
        """The images at the input size of the model."""
        return at_size(self.part, self.facts, self.facts.preprocessing.crop_ratio)

    def make(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        start = index * self.batch_size
        labels = self.part.labels[start : start + self.batch_size]
        images = stacked(lambda i: self.images[start + i], len(labels), self.facts, self.images)
        if not self.pad:
            return images, labels
        weights = np.ones(len(labels), "float32")
        missing = self.batch_size - len(labels)
        return tuple(
            np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
            for array in (images, labels, weights)
        )


class Originals(Sequence):
    """Images at their original sizes, with the channels of the model.

    Decoded images are cached, up to `IN_MEMORY_BYTES` in total.
    """

    def __init__(self, images: Sequence[np.ndarray], channels: int):
        self.images, self.channels = images, channels
        self.kept: dict[int, np.ndarray] = {}
        self.left = IN_MEMORY_BYTES
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        image = self.kept.get(index)
        if image is None:
            image = with_channels(self.images[index], self.channels)
            with self.lock:
                if not isinstance(self.images, np.ndarray) and image.nbytes <= self.left:
                    self.left -= image.nbytes
                    self.kept[index] = image
        return image


class Resized(Sequence):
    """Images converted lazily to the size and channels of a model."""

    def __init__(self, images: Sequence[np.ndarray], facts: ModelInput, crop_ratio: float):
        self.images, self.facts, self.crop_ratio = images, facts, crop_ratio

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        return fit_to_model(self.images[index], self.facts, self.crop_ratio)


def at_size(part: Part, facts: ModelInput, crop_ratio: float) -> Sequence[np.ndarray]:
    """Return the images at the input size of the model, as an array if memory allows."""
    shape = (part.size, *facts.size, facts.channels)
    if isinstance(part.images, np.ndarray) and part.images.shape == shape and crop_ratio == 1:
        return part.images
    resized = Resized(part.images, facts, crop_ratio)
    if np.prod(shape, dtype="int64") > IN_MEMORY_BYTES:
        return resized
    images = np.empty(shape, "uint8")

    def fill(index: int) -> None:
        images[index] = resized[index]

    _in_threads(fill, part.size)
    return images


def stacked(
    image: Callable[[int], np.ndarray], count: int, facts: ModelInput, images: Sequence
) -> np.ndarray:
    """Return `image(0)`, `image(1)`, ... as one normalized batch.

    Threads are used unless the underlying `images` are an array.
    """
    if isinstance(images, np.ndarray):
        return normalize(np.stack([image(i) for i in range(count)]), facts.preprocessing)
    batch = np.empty((count, *facts.size, facts.channels), "float32")

    def fill(i: int) -> None:
        batch[i] = normalize(image(i), facts.preprocessing)

    _in_threads(fill, count)
    return batch


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "images")


def _in_threads(function: Callable[[int], None], count: int) -> None:
    for _ in _pool().map(function, range(count)):
        pass
