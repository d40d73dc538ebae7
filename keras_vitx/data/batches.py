"""Batches of images and labels as a `keras.utils.PyDataset`, made ahead by Grain."""

import functools
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box, erase_on_device
from keras_vitx.data.augmentation.keras_cv import KerasCV
from keras_vitx.data.augmentation.mixing import Mixing, check_mixable, soft_labels
from keras_vitx.data.augmentation.windows import Window
from keras_vitx.data.preprocessing import (
    fit_to_model,
    normalize,
    normalize_on_device,
    with_channels,
)
from keras_vitx.data.sources.splits import Split
from keras_vitx.preprocessing import ModelInput

log = logging.getLogger(__name__)
# Decoded images of a split are kept in memory up to this size.
IN_MEMORY_BYTES = 512 * 2**20
# Threads that make batches; with more, Python's lock leaves little to gain.
MAX_THREADS = 8


class Batches(keras.utils.PyDataset):
    """Batches that are a function of the epoch and the index only.

    `batches[i]` is batch i of the current epoch, while Grain makes the next ones in threads or
    processes, several at once. Any order of access gives the same batches; only the order of the
    epoch is fast. The workers of Keras are not used, since they mix batches of two epochs.

    A full iteration ends with `on_epoch_end`, as in `fit` of Keras, and so starts the next
    epoch.

    Args:
        workers: Number of processes that make batches; 0 for threads of this process. Processes
            start by importing the main module, so a script needs `if __name__ == "__main__":`.

    Attributes:
        epoch: The current epoch. `fit` of Keras calls `on_epoch_end` once before the first
            epoch as well. To keep in step with Keras, call `set_epoch` in the
            `on_epoch_begin` of a callback.
    """

    endless = False
    """Whether the next epoch is made ahead as well; otherwise processes end with the epoch."""

    def __init__(self, workers: int = 0):
        super().__init__(workers=1)
        self.processes = workers
        self.epoch = 0
        self._clear()

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        raise NotImplementedError

    def make(self, epoch: int, index: int) -> tuple:
        """Return batch `index` of an epoch, of NumPy arrays. Called in threads or processes."""
        raise NotImplementedError

    def finish(self, batch: tuple) -> tuple:
        """Return a batch of `make` as `fit` takes it. Called in the process that trains."""
        return batch

    def __getitem__(self, index: int) -> tuple:
        return self.get(index)

    def get(self, index: int, *share: int) -> tuple:
        """Return batch `index` of the current epoch, or a share of it.

        Args:
            index: Index of the batch.
            *share: Further arguments of `make`.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        with self._lock:
            key = self.epoch, index, share
            if key not in self._recent:
                # Keras asks for the first two batches once before it begins.
                self._recent = dict([*self._recent.items()][-1:])
                self._recent[key] = self.finish(self._read(*key))
            return self._recent[key]

    def _read(self, epoch: int, index: int, share: tuple[int, ...]) -> tuple:
        step = epoch * len(self) + index
        follows, self._next = self._next == (step, share), (step + 1, share)
        if not follows:
            self._close()
            if self.processes:  # They take seconds to start: not for one batch.
                return self.make(epoch, index, *share)
        if self._iterator is None:
            self._iterator = iter(self.dataset(step, *share))
            # At the end of the program, too: processes would leave shared memory behind.
            self._closing = weakref.finalize(self, self._iterator.close)
        try:
            batch = next(self._iterator)
        except BaseException:
            self._close()
            raise
        if not self.endless and index + 1 == len(self):
            self._close()
        return batch

    def dataset(self, start: int = 0, *share: int) -> Any:
        """Return the batches before `finish` as a Grain dataset, from a step on.

        Step s is batch `s % len(self)` of epoch `s // len(self)`. Where batches are endless, so
        is the dataset; otherwise it ends with the epoch.

        Args:
            start: The first step.
            *share: Further arguments of `make`.
        """
        import grain  # slow, and not needed to predict

        stop = sys.maxsize if self.endless else (start // len(self) + 1) * len(self)
        steps = grain.MapDataset.range(start, stop).map(functools.partial(_make, self, share))
        threads = self.threads
        if not self.processes:
            return steps.to_iter_dataset(grain.ReadOptions(threads, prefetch_buffer_size=threads))
        from absl import flags

        if not flags.FLAGS.is_parsed():  # Grain's processes read them.
            flags.FLAGS.mark_as_parsed()
        one = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
        options = grain.MultiprocessingOptions(self.processes, per_worker_buffer_size=2)
        return steps.to_iter_dataset(one).mp_prefetch(options)

    @property
    def threads(self) -> int:
        """Number of threads that make batches, if no processes do."""
        return min(os.cpu_count() or 1, MAX_THREADS)

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

    def _clear(self):
        self._lock = threading.Lock()
        self._iterator, self._next, self._recent = None, None, {}

    def _close(self):
        if self._iterator is not None:
            self._closing()
        self._iterator = None

    def __getstate__(self):
        left_out = {"_lock", "_iterator", "_closing", "_next", "_recent"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state):
        vars(self).update(state)
        self._clear()


def _make(batches: Batches, share: tuple[int, ...], step: int) -> tuple:
    return batches.make(*divmod(step, len(batches)), *share)


class Made(NamedTuple):
    """A batch of images as it crosses from a worker to the process that trains.

    Attributes:
        images: uint8 (batch, height, width, channels); or float32, normalized and erased.
        labels: An array, or a dictionary of arrays.
        weights: float32 (batch,), or None.
        boxes: int32 (batch, 5), the boxes to erase (`erasing.draw_erasing`), or None.
        errors: The id and the error of each image that could not be decoded.
    """

    images: np.ndarray
    labels: Any
    weights: np.ndarray | None = None
    boxes: np.ndarray | None = None
    errors: tuple[tuple[Any, str], ...] = ()


class ImageBatches(Batches):
    """Batches of images of a split, normalized for a model.

    Workers hand over uint8. On an accelerator under PyTorch and JAX, images are normalized and
    erased on the device; on a CPU, and under TensorFlow, whose `fit` passes batches through
    `tf.data`, by the workers. The result is the same.

    Attributes:
        on_device: Whether images are normalized on the device.
        unreadable: The error of each image that could not be decoded, by id.
    """

    def __init__(self, part: Split, facts: ModelInput, strict: bool = False, workers: int = 0):
        super().__init__(workers)
        self.split, self.facts, self.strict = part, facts, strict
        self.on_device = has_accelerator()
        self.unreadable: dict[Any, str] = {}

    @functools.cached_property
    def images(self) -> "Prepared":
        """The images before augmentation."""
        raise NotImplementedError

    def read(self, position: int) -> Any:
        """Return an image, or the error of one that can't be decoded; with `strict`, it raises."""
        try:
            return self.images[position]
        except OSError as error:
            if self.strict:
                raise
            return error

    def normalized(self, images: np.ndarray, boxes: np.ndarray | None = None) -> np.ndarray:
        """Return uint8 images as the input of the model, with boxes of noise."""
        batch = np.empty(images.shape, "float32")
        for i, image in enumerate(images):  # One by one, they stay in the cache.
            normalize(image, self.facts.preprocessing, batch[i])
            if boxes is not None:
                erase_box(batch[i], boxes[i])
        return batch

    def finish(self, batch: Made) -> tuple:
        # Arrays of Grain's processes are of a class of its own, in shared memory.
        images, labels, weights, boxes = keras.tree.map_structure(
            lambda array: array if type(array) is np.ndarray else np.array(array), tuple(batch[:4]),
            none_is_leaf=False,
        )  # fmt: skip
        for name, error in batch.errors:
            if name not in self.unreadable:
                self.unreadable[name] = error
                log.warning("An image is skipped (%d so far): %s", len(self.unreadable), error)
        if images.dtype == np.uint8:
            images = normalize_on_device(images, self.facts.preprocessing)
            if boxes is not None:
                images = erase_on_device(images, boxes)
        return (images, labels) if weights is None else (images, labels, weights)

    def __getstate__(self):
        # Each process has its own images in memory.
        return {k: v for k, v in super().__getstate__().items() if k not in ("images", "keras_cv")}


class TrainingBatches(ImageBatches):
    """Shuffled, augmented and mixed images, in full batches only.

    Batch i of epoch e is the i-th slice of a permutation seeded by (seed, e), augmented and
    mixed with random numbers seeded by (seed, e, i): on any number of workers, and on every
    backend.

    An image that can't be decoded is replaced by another one of its batch, and a warning is
    logged; with `strict`, it raises.

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
        weights: Relative frequency of each image, (n,): images are drawn with replacement. None
            takes each image once per epoch.
        workers: As in `Batches`.

    Raises:
        ValueError: if the labels can't be mixed, or the augmentation does not take images of
            that many channels.
    """

    endless = True

    def __init__(
        self,
        part: Split,
        facts: ModelInput,
        batch_size: int,
        augmentation: Augmentation | None = None,
        mixing: Mixing | None = None,
        seed: int = 0,
        *,
        classes: int | None = None,
        strict: bool = False,
        targets: Callable[[Any, Window], np.ndarray] | None = None,
        weights: np.ndarray | None = None,
        workers: int = 0,
    ):
        super().__init__(part, facts, strict, workers)
        self.seed, self.classes, self.targets, self.weights = seed, classes, targets, weights
        self.augmentation, self.mixing = augmentation, Mixing.of(mixing)
        self.batch_size = min(batch_size, part.size)
        if augmentation is not None:
            augmentation.check_channels(facts.channels)
            if augmentation.by == "keras_cv":
                if targets is not None:
                    raise ValueError('augmentation: targets need by="pillow", got "keras_cv".')
                self.on_device = False
                _ = self.keras_cv  # A missing package is an error here.
        if self.mixing is not None:
            check_mixable(part.labels, classes)
            self.mixing.check_batch(self.batch_size)
            if targets is not None and self.mixing.cutmix:
                raise ValueError(
                    "mixing: CutMix can't mix targets that follow the window of an image. Expected "
                    f"cutmix=0, got {self.mixing.cutmix}."
                )

    def __len__(self) -> int:
        return self.split.size // self.batch_size

    @property
    def threads(self) -> int:
        return super().threads if self.keras_cv is None else 1

    @functools.cached_property
    def keras_cv(self) -> KerasCV | None:
        """The layers of keras-cv, if they augment."""
        if self.augmentation is None or self.augmentation.by != "keras_cv":
            return None
        return KerasCV(self.augmentation, self.facts.size)

    def positions(self, epoch: int, index: int) -> np.ndarray:
        """Return the positions in the part of the images of a batch, (batch,)."""
        repeats = self.augmentation.repeats if self.augmentation else 1
        places = np.arange(index * self.batch_size, (index + 1) * self.batch_size) // repeats
        if self.weights is None:
            return order(self.seed, epoch, self.split.size)[places]
        random = np.random.default_rng((self.seed, epoch))
        shares = self.weights / self.weights.sum()
        return random.choice(self.split.size, self.split.size, p=shares)[places]

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: their paths, or indices in the source."""
        return [self.split.id(position) for position in self.positions(epoch, index)]

    @functools.cached_property
    def images(self) -> "Prepared":
        """The images before augmentation, at the input size unless a window is cropped."""
        crop = self.augmentation and self.augmentation.crop
        budget = IN_MEMORY_BYTES // max(self.processes, 1)
        if crop == "random_resized":
            prepare = functools.partial(with_channels, channels=self.facts.channels)
            pictures = getattr(self.split.images, "picture", None)
            if pictures and self.facts.channels == 3 and self.keras_cv is None:
                return Prepared(self.split.images, None, budget, pictures)
        else:
            crop_ratio = 1.0 if crop == "shift" else self.facts.preprocessing.crop_ratio
            prepare = functools.partial(fit_to_model, facts=self.facts, crop_ratio=crop_ratio)
        return Prepared(self.split.images, prepare, budget)

    def make(self, epoch: int, index: int, share: int = 0, shares: int = 1) -> Made:
        """Return batch `index` of an epoch, or the images of one of several shares of it.

        Args:
            epoch: The epoch.
            index: Index of the batch.
            share: Index of the share; see `share_of_batch`.
            shares: Number of shares.
        """
        positions = self.positions(epoch, index)
        # Not `index`: for NumPy, (seed, epoch, 0) equals (seed, epoch), the seed of the order.
        random = np.random.default_rng((self.seed, epoch, index + 1))
        seeds = random.integers(2**63, size=len(positions))
        if shares > 1:
            own = share_of_batch(len(positions), share, shares)
            positions, seeds = positions[own], seeds[own]
        images = np.empty((len(positions), *self.facts.size, self.facts.channels), "uint8")
        boxes = np.zeros((len(positions), 5), "int32")
        windows: list[Window | None] = [None] * len(positions)
        errors = []
        if self.keras_cv is not None:
            self.keras_cv.start(int(seeds[0] % 2**31))
        for i, position in enumerate(positions):
            image = self.read(position)
            if isinstance(image, OSError):
                errors.append((self.split.id(position), str(image)))
            else:
                generator = np.random.default_rng(seeds[i])
                images[i], windows[i], boxes[i] = self._augmented(image, generator)
        read = [i for i, window in enumerate(windows) if window is not None]
        if not read:
            raise OSError(f"no image of batch {index} can be decoded: {errors[0][1]}")
        if errors:
            taken = [i if windows[i] else read[i % len(read)] for i in range(len(positions))]
            images, boxes, positions = images[taken], boxes[taken], positions[taken]
            windows = [windows[i] for i in taken]

        labels: Any = self.split.labels[positions]
        if self.mixing is not None:
            labels = soft_labels(labels, self.classes)
        if self.targets is not None:
            pairs = zip(positions, windows, strict=True)
            targets = [self.targets(self.split.id(i), window) for i, window in pairs]
            labels = {"head": labels, "aux_head": np.stack(targets)}
        if self.mixing is not None:
            images, labels = self.mixing(images, labels, random, share, shares)
        erasing = boxes if self.augmentation and self.augmentation.erasing else None
        if self.on_device:
            return Made(images, labels, boxes=erasing, errors=tuple(errors))
        if self.keras_cv is not None:
            batch = self.normalized(images)
            batch = np.stack([self.keras_cv.erase(image) for image in batch])
            return Made(batch, labels, errors=tuple(errors))
        return Made(self.normalized(images, erasing), labels, errors=tuple(errors))

    def _augmented(self, image: np.ndarray, random: np.random.Generator) -> tuple:
        """Return an augmented uint8 image, its window, and the box to erase."""
        augmentation, size = self.augmentation, self.facts.size
        if augmentation is None:
            return image, Window(), 0
        if self.keras_cv is not None:
            return self.keras_cv.pixels(image), Window(), 0
        mean = self.facts.preprocessing.mean
        image, window = augmentation.pixels(image, size, random, mean)
        return image, window, draw_erasing(*size, augmentation.erasing, random)


class EvaluationBatches(ImageBatches):
    """Images in order, with the evaluation transform; the last batch may be smaller.

    An image that can't be decoded is left out, and a warning is logged; with `strict`, it raises.

    Args:
        part: The images and their labels.
        facts: The size, channels and preprocessing of the model.
        batch_size: Number of images per batch.
        pad: Whether to fill the last batch with black images of weight 0, for devices
            that share a batch. Batches are then (images, labels, weights), with
            float32 weights (batch,): 1 for an image, 0 for padding.
        soft: Number of classes of soft labels, as mixed training images have them; None leaves
            the labels as they are.
        strict: Whether an image that can't be decoded is an error.
    """

    def __init__(
        self,
        part: Split,
        facts: ModelInput,
        batch_size: int,
        pad: bool = False,
        soft: int | None = None,
        strict: bool = False,
    ):
        super().__init__(part, facts, strict)
        self.batch_size, self.pad, self.soft = batch_size, pad, soft

    def __len__(self) -> int:
        return -(-self.split.size // self.batch_size)

    @functools.cached_property
    def images(self) -> "Prepared":
        """The images at the input size of the model."""
        crop_ratio = self.facts.preprocessing.crop_ratio
        prepare = functools.partial(fit_to_model, facts=self.facts, crop_ratio=crop_ratio)
        return Prepared(self.split.images, prepare, IN_MEMORY_BYTES)

    def make(self, epoch: int, index: int) -> Made:
        positions = range(self.split.size)[index * self.batch_size :][: self.batch_size]
        found = {position: self.read(position) for position in positions}
        errors = tuple(
            (self.split.id(position), str(error))
            for position, error in found.items()
            if isinstance(error, OSError)
        )
        read = [position for position in positions if isinstance(found[position], np.ndarray)]
        if not read:
            raise OSError(f"no image of batch {index} can be decoded: {errors[0][1]}")
        images, labels = np.stack([found[position] for position in read]), self.split.labels[read]
        if self.soft is not None:
            labels = soft_labels(labels, self.soft)
        weights = None
        if self.pad:
            missing = self.batch_size - len(read)
            images, labels, weights = (
                np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
                for array in (images, labels, np.ones(len(read), "float32"))
            )
        return Made(images if self.on_device else self.normalized(images), labels, weights, None,
                    errors)  # fmt: skip


class Prepared:
    """Images prepared by a function when they are used, and kept up to `budget` bytes in total.

    Args:
        images: The images.
        prepare: A function of an image, or None.
        budget: Bytes to keep; prepared images of an array are not kept if they are the same.
        read: A function of an index that returns the image, in place of `images[index]`.
    """

    def __init__(
        self,
        images: Sequence[np.ndarray],
        prepare: Callable[[np.ndarray], np.ndarray] | None,
        budget: int,
        read: Callable[[int], Any] | None = None,
    ):
        self.images, self.prepare, self.left = images, prepare, budget
        self.read = read or images.__getitem__
        self.kept: dict[int, Any] = {}
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        image = self.kept.get(index)
        if image is None:
            original = self.read(index)
            image = self.prepare(original) if self.prepare else original
            in_memory = isinstance(self.images, np.ndarray) and np.shares_memory(image, original)
            # Pillow keeps four bytes per pixel.
            size = image.nbytes if isinstance(image, np.ndarray) else 4 * math.prod(image.size)
            with self.lock:
                if not in_memory and size <= self.left and index not in self.kept:
                    self.left -= size
                    self.kept[index] = image
        return image


def has_accelerator() -> bool:
    """Return whether Keras computes on a GPU or TPU to which batches can be sent as uint8."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    if keras.backend.backend() == "jax" and keras.distribution.distribution() is None:
        import jax

        return jax.default_backend() != "cpu"
    return False


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


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)
