"""Batches of images and labels: a chain of Grain's steps, prefetched and read as a `PyDataset`."""

import atexit
import dataclasses
import functools
import itertools
import logging
import math
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from absl.logging import get_absl_logger

from keras_vitx.backend import WORKER, is_worker
from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box
from keras_vitx.data.augmentation.mixing import Mixing, shard_of_batch, soft_labels
from keras_vitx.data.images import fit_to_model, normalize, with_channels
from keras_vitx.data.sources.dataset import ArrayImages, Split
from keras_vitx.pixels import pack_images
from keras_vitx.preprocessing import ModelInput

if is_worker():  # It unpickles loaders without Keras, in a second, and ends with its parent.
    PyDataset = object
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: parent.join() or os._exit(1), daemon=True).start()
else:
    from keras.utils import PyDataset

log = logging.getLogger(__name__)
MAX_THREADS = 8  # More gain little because of Python's lock.
# Without JAX, Grain logs on import that its profiler is missing.
get_absl_logger().addFilter(lambda record: "jax profiler" not in record.getMessage())
STREAMS = weakref.WeakSet()  # To close: else processes would leave shared memory behind.
Change = Callable[[int, tuple], tuple]
IN_MEMORY_BYTES = 512 * 2**20
"""Maximum size of the cache of decoded images of a split."""


class Sample(NamedTuple):
    """An image of a split, uint8, with a box to erase; or None, and the error of its file."""

    position: int
    image: Any = None
    box: tuple[int, ...] | None = None
    error: str | None = None


class Batch(NamedTuple):
    """Images, uint8, with `boxes` to erase; and errors by the ids of their images."""

    images: Any
    labels: Any
    weights: np.ndarray | None = None
    boxes: np.ndarray | None = None
    errors: tuple[tuple[Any, str], ...] = ()


@dataclass(eq=False)
class Loader:
    """The batches of a split as a chain of Grain's steps; arguments as in `pipelines`.

    With a `seed`, images are shuffled, batches are full, and another image of a batch replaces one
    that can't be decoded. Without, images are in order, and those are omitted or, if `weighted`,
    black with weight 0, as is what `pad` adds. `soft` is the number of classes for soft labels.
    `shard` is the number of this shard of each batch, and that of all of them. With `workers`,
    processes make the batches. `unreadable` has the errors by the ids of their images.
    """

    split: Split
    spec: ModelInput
    batch_size: int
    augmentation: Augmentation | None = None
    mixing: Mixing | None = None
    seed: int | None = None
    soft: int | None = None
    strict: bool = False
    pad: bool = False
    weighted: bool = False
    shard: tuple[int, int] = (0, 1)
    workers: int = 0
    unreadable: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self):
        self.cache: dict[int, Any] = {}
        self.budget = IN_MEMORY_BYTES // max(self.workers, 1)
        if self.seed is not None:
            self.batch_size = min(self.batch_size, len(self.split))
        if self.augmentation is not None:
            self.augmentation.check(self.spec.channels)
        if self.mixing is not None:
            self.mixing.check(self.split.labels, self.soft, self.batch_size)
        self.weighted |= self.pad
        remainder = 0 if self.seed is None else len(self.split) % self.batch_size
        self.size = len(self.split) - remainder  # Images per epoch.

    def __getstate__(self):
        return vars(self) | {"cache": {}}  # Each process has its own.

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)

    def dataset(self) -> Any:
        """Return an endless `grain.MapDataset` of `Batch`."""
        from grain import MapDataset  # Slow, and not needed to predict.

        numbers, seed = MapDataset.range, self.seed or 0
        images = numbers(self.size).seed(seed).map_with_index(self.position).random_map(self.image)
        rows, whole = shard_of_batch(self.batch_size, *self.shard), images
        if (count := len(rows)) < self.batch_size:  # Grain's own shards would separate pairs.
            images = numbers(len(self) * count).map_with_index(
                lambda i, _: whole[i // count * self.batch_size + rows[i % count]]
            )
        return images.batch(count, batch_fn=list).random_map(self.collate, seed=seed).repeat()

    def position(self, row: int, _: Any = None) -> int:
        """Return the position in the split of a row, counted from the first epoch on."""
        epoch, row = divmod(row, self.size)
        if self.seed is None:
            return row
        row //= self.augmentation.repeats if self.augmentation else 1
        # Grain's `shuffle` takes 3 ms for one of 24 images, and 0.1 for one of 1,000.
        return int(order(self.seed, epoch, len(self.split))[row])

    def image(self, position: int, random: np.random.Generator) -> Sample:
        """Return an image of the split, augmented, or the error of its file."""
        try:
            image = self.decode(position)
        except OSError as error:
            if self.strict:
                raise
            return Sample(position, error=str(error))
        augmentation, size, box = self.augmentation, self.spec.size, None
        if augmentation is not None and augmentation.by == "pillow":
            image = augmentation.pixels(image, size, random, self.spec.preprocessing.mean)
        if augmentation is not None and augmentation.erasing:
            box = draw_erasing(*size, augmentation.erasing, random)
        return Sample(position, image, box)

    def decode(self, position: int) -> Any:
        """Return an image before augmentation, at the input size unless it will be cropped."""
        if position in self.cache:
            return self.cache[position]
        images, crop = self.split.images, self.augmentation and self.augmentation.crop
        if crop != "random_resized":
            image = fit_to_model(images[position], self.spec, 1.0 if crop == "shift" else None)
        elif self.spec.channels == 3 and not isinstance(images, ArrayImages):
            image = images.picture(position)  # Cheaper to crop than an array.
        else:
            image = with_channels(images[position], self.spec.channels)
        # Pillow uses four bytes per pixel.
        size = image.nbytes if isinstance(image, np.ndarray) else 4 * math.prod(image.size)
        if size <= self.budget:
            self.budget -= size
            self.cache[position] = image
        return image

    def collate(self, samples: list[Sample], random: np.random.Generator) -> Batch:
        """Return the batch of some samples, mixed."""
        id_of = self.split.images.id
        errors = tuple((id_of(s.position), s.error) for s in samples if s.image is None)
        samples, weights = self.without_errors(samples)
        images: Any = [sample.image for sample in samples]
        if self.augmentation is not None and self.augmentation.by == "keras_cv":
            # By batches, because TensorFlow takes a second to set a seed.
            from keras_vitx.data.augmentation.keras_cv import augment

            images = augment(self.augmentation, images, self.spec.size, int(random.integers(2**31)))
        images, labels = np.stack(images), self.split.labels[[s.position for s in samples]]
        boxes = samples[0].box and np.array([sample.box for sample in samples], "int32")
        if self.soft is not None:
            labels = soft_labels(labels, self.soft)
        if self.mixing is not None:
            images, labels = self.mixing(images, labels, random, *self.shard)
        return Batch(images, labels, weights, boxes, errors)

    def without_errors(self, samples: list[Sample]) -> tuple[list[Sample], np.ndarray | None]:
        """Return samples that have images, and their weights if there are any."""
        readable = [sample for sample in samples if sample.image is not None]
        if self.weighted:
            samples = samples + [Sample(0)] * (self.pad * (self.batch_size - len(samples)))
            weights = np.array([sample.image is not None for sample in samples], "float32")
            black = np.zeros((*self.spec.size, self.spec.channels), "uint8")
            return [s if s.image is not None else s._replace(image=black) for s in samples], weights
        if not readable:
            raise OSError(f"no image of a batch can be decoded: {samples[0].error}")
        if self.seed is None:
            return readable, None
        others = itertools.cycle(readable)
        return [next(others) if s.image is None else s for s in samples], None

    def normalize(self, batch: Batch) -> Batch:
        """Return a batch of float32 images, normalized for the model, with boxes of noise."""
        images = np.empty(batch.images.shape, "float32")
        for i, image in enumerate(batch.images):  # One by one, to stay in the CPU's cache.
            normalize(image, self.spec.preprocessing, images[i])
            if batch.boxes is not None:
                erase_box(images[i], batch.boxes[i])
        return batch._replace(images=images)

    def pack(self, batch: Batch) -> Batch:
        """Return a batch whose images have the form of `keras_vitx.pixels`."""
        images = pack_images(batch.images, self.spec.preprocessing, batch.boxes)
        return batch._replace(images=images)


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


class ImageBatches(PyDataset):
    """The batches of a `Loader`, functions of the epoch and the index only, in any order of access.

    Images are normalized for a model or, with `pixels`, have the form of `keras_vitx.pixels`.

    `kv.fit` and `kv.evaluate` read `stream`. This is a `PyDataset` so that plain Keras takes it in
    `fit`, `evaluate` and `predict`, which read one batch after another, in one thread, as Keras's
    workers mix batches of two epochs. A full iteration starts the next epoch by `on_epoch_end`, as
    does Keras's `fit`, which also calls it before the first epoch: set `epoch` in a callback.
    """

    def __init__(self, loader: Loader, pixels: bool = False, changes: Sequence[Change] = ()):
        super().__init__(workers=1)
        self.loader, self.pixels, self.changes = loader, pixels, tuple(changes)
        self.epoch = 0

    def replace(self, **options: Any) -> "ImageBatches":
        """Return these batches with other options of the loader.

        With `pad=True`, the last batch of an evaluation is filled with black images, and batches
        have weights `(batch,)`, 0 for padding: `keras.distribution` splits batches evenly.
        """
        return type(self)(dataclasses.replace(self.loader, **options), self.pixels, self.changes)

    def map(self, change: Change) -> "ImageBatches":
        """Return these batches changed by a function of index and batch, in the reading thread."""
        return type(self)(self.loader, self.pixels, (*self.changes, change))

    def __len__(self) -> int:
        return len(self.loader)

    def dataset(self) -> Any:
        """Return a `grain.MapDataset` of batches i of epochs e, element `e * len(self) + i`."""
        return self._finish(self.loader.dataset())

    def _finish(self, dataset: Any) -> Any:
        """Return a dataset of `Batch` with the steps that this process does itself."""
        form = self.loader.pack if self.pixels else self.loader.normalize
        return dataset.map(form).map(functools.partial(_note_errors, self.loader.unreadable))

    def __getitem__(self, index: int) -> tuple:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return _change(self.changes, index, self.dataset()[self._first() + index])

    def _first(self) -> int:
        """Return the step at which the epoch begins; those of an evaluation are the same."""
        return 0 if self.loader.seed is None else self.epoch * len(self)

    def stream(self, step: int = 0) -> Iterator[tuple]:
        """Return a generator of batches from a step on, counted from the first epoch on.

        Without a seed it ends with the epoch. Grain prefetches in threads or, with `workers`, in
        processes, which import the main module, and end with this one or when the stream is closed.
        """
        from absl import flags
        from grain import MultiprocessingOptions, ReadOptions

        rest = slice(step, len(self) if self.loader.seed is None else None)
        if not (workers := self.loader.workers):
            threads = min(os.cpu_count() or 1, MAX_THREADS)
            batches = self.dataset()[rest].to_iter_dataset(ReadOptions(threads, threads))
        else:
            flags.FLAGS.is_parsed() or flags.FLAGS.mark_as_parsed()  # Grain's processes read flags.
            batches = self.loader.dataset()[rest].to_iter_dataset(ReadOptions(1, 1))
            batches = batches.mp_prefetch(MultiprocessingOptions(workers, per_worker_buffer_size=2))
            batches = self._finish(batches.map(lambda batch: Batch(*map(_own, batch))))
        stream = _read(iter(batches), workers, self.changes, step, len(self))
        STREAMS.add(stream)
        return stream

    def __iter__(self):
        yield from itertools.islice(self.stream(self._first()), len(self))
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self.epoch += 1

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: paths, or indices in the source."""
        loader, size = self.loader, self.loader.batch_size
        rows = range(size * (epoch * len(self) + index), size * (epoch * len(self) + index + 1))
        return [loader.split.images.id(loader.position(row)) for row in rows]


@atexit.register
def _close_streams():
    for stream in list(STREAMS):
        stream.close()


def _read(iterator, workers, changes, first, steps):
    try:
        if workers:  # They start with the first batch.
            os.environ[WORKER] = "1"
        for step, batch in enumerate(iterator, first):
            os.environ.pop(WORKER, None)
            yield _change(changes, step % steps, batch)
    finally:
        os.environ.pop(WORKER, None)
        iterator.close()


def _change(changes, index, batch):
    for change in changes:
        batch = change(index, batch)
    return batch


def _own(value: Any) -> Any:
    """Copy arrays of Grain's processes, which are of a subclass in shared memory."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _note_errors(unreadable: dict[Any, str], batch: Batch) -> tuple:
    """Return a batch for `fit`, and add its errors to those that are known."""
    for name, error in batch.errors:
        if name not in unreadable:
            unreadable[name] = error
            log.warning("An image is skipped (%d so far): %s", len(unreadable), error)
    return tuple(batch[:2] if batch.weights is None else batch[:3])
