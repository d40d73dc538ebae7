"""Batches of images and labels as a `keras.utils.PyDataset`, prefetched in threads."""

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_vitx.data.augmentation import Augmentation, augmented
from keras_vitx.data.augmentation.keras_cv import KerasCV
from keras_vitx.data.augmentation.mixing import Mixing, check_mixable, soft_labels
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.data.preprocessing import fit_to_model, normalize, with_channels
from keras_vitx.data.sources.parts import Part
from keras_vitx.preprocessing import ModelInput

log = logging.getLogger(__name__)
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
        self._made: dict[tuple[int, ...], Future] = {}

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        raise NotImplementedError

    def make(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        """Return batch `index` of an epoch. Called in the background thread only."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return self.get(index)

    def get(self, index: int, *share: int) -> tuple[np.ndarray, ...]:
        """Return batch `index` of the current epoch, or a share of it.

        Args:
            index: Index of the batch.
            *share: Further arguments of `make`.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        with self._lock:
            made, self._made = self._made, {}
            for ahead in range(index, min(index + AHEAD + 1, len(self))):
                key = self.epoch, ahead, *share
                self._made[key] = made.pop(key, None) or self._maker.submit(self.make, *key)
            for future in made.values():
                future.cancel()
            batch = self._made.pop((self.epoch, index, *share))
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
    """Shuffled, augmented and mixed images, in full batches only.

    Batch i of epoch e is the i-th slice of a permutation seeded by (seed, e), augmented and
    mixed with random numbers seeded by (seed, e, i).

    An image that can't be decoded although the source was opened is replaced by another one of
    its batch, and a warning is logged; with `strict`, it raises.

    Args:
        part: The images and their labels.
        facts: The size, channels and preprocessing of the model.
        batch_size: Number of images per batch, at most the number of images.
        augmentation: An `Augmentation`, or None for the evaluation transform.
        mixing: A `Mixing`, or None. Mixed labels are float32, as `mixing.soft_labels` makes
            them.
        seed: Seed of the order, the augmentation and the mixing.
        classes: Number of classes; required to mix integer labels.
        strict: Whether an image that can't be decoded is an error.
        targets: A function of the id of an image (as in `ids`) and the `Window` of it that is
            seen, which returns an array of the same shape for all images, such as one label
            per patch of the window. The labels of a batch are then
            {"head": labels, "aux_head": the stacked arrays}. MixUp mixes both; CutMix is an
            error.

    Attributes:
        unreadable: The error of each image that could not be decoded, by id.

    Raises:
        ValueError: if the labels can't be mixed, or the augmentation does not take images of
            that many channels.
    """

    def __init__(
        self,
        part: Part,
        facts: ModelInput,
        batch_size: int,
        augmentation: Augmentation | None = None,
        mixing: Mixing | None = None,
        seed: int = 0,
        *,
        classes: int | None = None,
        strict: bool = False,
        targets: Callable[[Any, Window], np.ndarray] | None = None,
    ):
        super().__init__()
        self.part, self.facts, self.seed = part, facts, seed
        self.augmentation, self.mixing = augmentation, Mixing.of(mixing)
        self.classes, self.strict, self.targets = classes, strict, targets
        self.batch_size = min(batch_size, part.size)
        self.unreadable: dict[Any, OSError] = {}
        self.keras_cv = None
        if augmentation is not None:
            augmentation.check_channels(facts.channels)
            if augmentation.by == "keras_cv":
                if targets is not None:
                    raise ValueError('augmentation: targets need by="pillow", got "keras_cv".')
                self.keras_cv = KerasCV(augmentation, facts.size)
        if self.mixing is not None:
            check_mixable(part.labels, classes)
            if targets is not None and self.mixing.cutmix:
                raise ValueError(
                    "mixing: CutMix can't mix targets that follow the window of an image. Expected "
                    f"cutmix=0, got {self.mixing.cutmix}."
                )

    def __len__(self) -> int:
        return self.part.size // self.batch_size

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """Return the positions in the part of the images of a batch, (batch,)."""
        repeats = self.augmentation.repeats if self.augmentation else 1
        places = np.arange(index * self.batch_size, (index + 1) * self.batch_size) // repeats
        return order(self.seed, epoch, self.part.size)[places]

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: their paths, or indices in the source."""
        return [self.part.id(position) for position in self.positions(epoch, index)]

    @functools.cached_property
    def images(self) -> Sequence[np.ndarray]:
        """The images before augmentation."""
        crop = self.augmentation and self.augmentation.crop
        # A random window is cropped from the original image, not from a resized one.
        if crop == "random_resized":
            return Originals(self.part.images, self.facts.channels)
        crop_ratio = 1.0 if crop == "shift" else self.facts.preprocessing.crop_ratio
        return at_size(self.part, self.facts, crop_ratio, self._failed)

    def make(
        self, epoch: int, index: int, share: int = 0, shares: int = 1
    ) -> tuple[np.ndarray, Any]:
        """Return batch `index` of an epoch, or the images of one of several shares of it.

        Args:
            epoch: The epoch.
            index: Index of the batch.
            share: Index of the share; see `share_of_batch`.
            shares: Number of shares.
        """
        positions, images = self.positions(epoch, index), self.images
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        seeds = random.integers(2**63, size=len(positions))
        if shares > 1:
            own = share_of_batch(len(positions), share, shares)
            positions, seeds = positions[own], seeds[own]
        batch = np.empty((len(positions), *self.facts.size, self.facts.channels), "float32")
        windows: list[Window | None] = [None] * len(positions)

        def fill(i: int) -> None:
            if self.unreadable and self.part.id(positions[i]) in self.unreadable:
                return
            try:
                image = images[positions[i]]
            except OSError as error:
                self._failed(positions[i], error)
            else:
                windows[i] = self._augmented(image, batch[i], np.random.default_rng(seeds[i]))

        if self.keras_cv is None:
            _in_threads(fill, len(positions))
        else:
            self.keras_cv.start(int(seeds[0] % 2**31))
            for i in range(len(positions)):
                fill(i)
        read = [i for i, window in enumerate(windows) if window is not None]
        if not read:
            raise OSError(
                f"no image of batch {index} can be decoded, such as {self.ids(epoch, index)[0]}"
            )
        if len(read) < len(positions):
            taken = [i if windows[i] else read[i % len(read)] for i in range(len(positions))]
            batch, positions = batch[taken], positions[taken]
            windows = [windows[i] for i in taken]

        labels = self.part.labels[positions]
        if self.mixing is not None:
            labels = soft_labels(labels, self.classes)
        if self.targets is not None:
            pairs = zip(positions, windows, strict=True)
            targets = [self.targets(self.part.id(i), window) for i, window in pairs]
            labels = {"head": labels, "aux_head": np.stack(targets)}
        return (batch, labels) if self.mixing is None else self.mixing(batch, labels, random)

    def _augmented(self, image: np.ndarray, out: np.ndarray, random: np.random.Generator) -> Window:
        """Write the augmented and normalized image to `out`, and return its window."""
        if self.keras_cv is not None:
            pixels = normalize(self.keras_cv.pixels(image), self.facts.preprocessing)
            out[:], window = self.keras_cv.erase(pixels), Window()
        else:
            out[:], window = augmented(image, self.augmentation, self.facts, random)
        return window

    def _failed(self, position: int, error: OSError) -> None:
        """Take note of an image that can't be decoded."""
        if self.strict:
            raise error
        self.unreadable[self.part.id(position)] = error
        log.warning("An image is skipped in training (%d so far): %s", len(self.unreadable), error)


class EvaluationBatches(Batches):
    """Images in order, with the evaluation transform; the last batch may be smaller.

    An image that can't be decoded raises: measures of other images than those asked for would
    not be comparable.

    Args:
        part: The images and their labels.
        facts: The size, channels and preprocessing of the model.
        batch_size: Number of images per batch.
        pad: Whether to fill the last batch with black images of weight 0, for devices
            that share a batch. Batches are then (images, labels, weights), with
            float32 weights (batch,): 1 for an image, 0 for padding.
        soft: Number of classes of soft labels, as mixed training images have them; None leaves
            the labels as they are.
    """

    def __init__(
        self,
        part: Part,
        facts: ModelInput,
        batch_size: int,
        pad: bool = False,
        soft: int | None = None,
    ):
        super().__init__()
        self.part, self.facts, self.batch_size, self.pad = part, facts, batch_size, pad
        self.soft = soft

    def __len__(self) -> int:
        return -(-self.part.size // self.batch_size)

    @functools.cached_property
    def images(self) -> Sequence[np.ndarray]:
        """The images at the input size of the model."""
        return at_size(self.part, self.facts, self.facts.preprocessing.crop_ratio)

    def make(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        start = index * self.batch_size
        labels = self.part.labels[start : start + self.batch_size]
        if self.soft is not None:
            labels = soft_labels(labels, self.soft)
        images = stacked(lambda i: self.images[start + i], len(labels), self.facts, self.images)
        if not self.pad:
            return images, labels
        weights = np.ones(len(labels), "float32")
        missing = self.batch_size - len(labels)
        return tuple(
            np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
            for array in (images, labels, weights)
        )


def share_of_batch(count: int, share: int, shares: int) -> np.ndarray:
    """Return the indices of the images of a share of a batch, in ascending order.

    If the shares have an even number of images, the one with image i has image
    `count - 1 - i`, too, with which `Mixing` mixes it.

    Args:
        count: Number of images in the batch, a multiple of `shares`.
        share: Index of the share.
        shares: Number of shares.
    """
    size = count // shares
    if size % 2:
        return np.arange(share * size, (share + 1) * size)
    first = np.arange(share * size // 2, (share + 1) * size // 2)
    return np.concatenate([first, count - 1 - first[::-1]])


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


def at_size(
    part: Part,
    facts: ModelInput,
    crop_ratio: float,
    failed: Callable[[int, OSError], None] | None = None,
) -> Sequence[np.ndarray]:
    """Return the images at the input size of the model, as an array if memory allows.

    An image that can't be decoded is passed to `failed`, and raises if there is none.
    """
    shape = (part.size, *facts.size, facts.channels)
    if isinstance(part.images, np.ndarray) and part.images.shape == shape and crop_ratio == 1:
        return part.images
    resized = Resized(part.images, facts, crop_ratio)
    if np.prod(shape, dtype="int64") > IN_MEMORY_BYTES:
        return resized
    images = np.empty(shape, "uint8")

    def fill(index: int) -> None:
        try:
            images[index] = resized[index]
        except OSError as error:
            if failed is None:
                raise
            failed(index, error)

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
