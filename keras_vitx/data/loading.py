"""Batches of images and labels: chains of Grain's steps, and their prefetching as a `PyDataset`."""

import contextlib
import functools
import itertools
import logging
import math
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keras_vitx.backend import WORKER, is_worker
from keras_vitx.data.augmentation import Augmentation
from keras_vitx.data.augmentation.erasing import draw_erasing, erase_box
from keras_vitx.data.augmentation.mixing import Mixing, shard_of_batch, soft_labels
from keras_vitx.data.images import fit_to_model, normalize, with_channels
from keras_vitx.data.sources.dataset import ArrayImages, Split
from keras_vitx.pixels import packed
from keras_vitx.preprocessing import ModelInput

if is_worker():  # Worker processes unpickle loaders; without Keras they start in a second.
    PyDataset = object
else:
    from keras.utils import PyDataset

log = logging.getLogger(__name__)
MAX_THREADS = 8  # More gain little because of Python's lock.
IN_MEMORY_BYTES = 512 * 2**20
"""Maximum size of the cache of decoded images of a split."""


class Sample(NamedTuple):
    """An image of a split, uint8, with a box to erase; or None, and the error of its file."""

    position: int
    image: Any = None
    box: tuple[int, ...] | None = None
    error: str | None = None


class Batch(NamedTuple):
    """Images, float32 and normalized, or uint8, with `boxes` to erase; and errors by their ids."""

    images: np.ndarray
    labels: Any
    weights: np.ndarray | None = None
    boxes: np.ndarray | None = None
    errors: tuple[tuple[Any, str], ...] = ()


@functools.cache
def import_grain() -> Any:
    """Return Grain, which is slow to import and not needed to predict."""
    from absl.logging import get_absl_logger

    # Without JAX, Grain logs on import that its profiler is missing.
    get_absl_logger().addFilter(lambda record: "jax profiler" not in record.getMessage())
    import grain

    return grain


@dataclass(eq=False)
class Loader:
    """The batches of a split as a Grain dataset; arguments as in `pipelines`.

    With a `seed`, images are shuffled, batches are full, and another image of a batch replaces one
    that can't be decoded. Without, images are in order, and those are omitted or, if `weighted`,
    black with weight 0, as is what `pad` adds. `soft` is the number of classes for soft labels.
    With `as_uint8`, images are not normalized. Up to `budget` bytes of decoded images are cached.
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
    as_uint8: bool = False
    budget: int = 0
    cache: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.seed is not None:
            self.batch_size = min(self.batch_size, self.split.size)
        if self.augmentation is not None:
            self.augmentation.check(self.spec.channels)
        if self.mixing is not None:
            self.mixing.check(self.split.labels, self.soft, self.batch_size)
        self.weighted |= self.pad
        remainder = 0 if self.seed is None else self.split.size % self.batch_size
        self.size = self.split.size - remainder  # Images per epoch.

    def __getstate__(self):
        return vars(self) | {"cache": {}}  # Each process has its own.

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)

    def dataset(self, shard: int = 0, num_shards: int = 1) -> Any:
        """Return an endless dataset of `Batch`, or of a shard of each."""
        numbers, seed = import_grain().MapDataset.range, self.seed or 0
        images = numbers(self.size).seed(seed).map_with_index(self.position).random_map(self.image)
        rows, whole = shard_of_batch(self.batch_size, shard, num_shards), images
        if (count := len(rows)) < self.batch_size:  # Grain's own shards would separate pairs.
            images = numbers(len(self) * count).map_with_index(
                lambda i, _: whole[i // count * self.batch_size + rows[i % count]]
            )
        mix = functools.partial(self.mix, shard=shard, num_shards=num_shards)
        return images.batch(count, batch_fn=list).random_map(mix, seed=seed).repeat()

    def position(self, row: int, _: Any = None) -> int:
        """Return the position in the split of a row, counted from the first epoch on."""
        epoch, row = divmod(row, self.size)
        if self.seed is None:
            return row
        row //= self.augmentation.repeats if self.augmentation else 1
        # Grain's `shuffle` takes 3 ms for one of 24 images, and 0.1 for one of 1,000.
        return int(order(self.seed, epoch, self.split.size)[row])

    def decode(self, position: int) -> Any:
        """Return an image before augmentation, at the input size unless it will be cropped."""
        images, crop = self.split.images, self.augmentation and self.augmentation.crop
        if crop != "random_resized":
            return fit_to_model(images[position], self.spec, 1.0 if crop == "shift" else None)
        if self.spec.channels == 3 and not isinstance(images, ArrayImages):
            return images.picture(position)  # Cheaper to crop than an array.
        return with_channels(images[position], self.spec.channels)

    def image(self, position: int, random: np.random.Generator) -> Sample:
        """Return an image of the split, cached before its augmentation if possible."""
        image, augmentation = self.cache.get(position), self.augmentation
        if image is None:
            try:
                image = self.decode(position)
            except OSError as error:
                if self.strict:
                    raise
                return Sample(position, error=str(error))
            # Pillow uses four bytes per pixel.
            size = image.nbytes if isinstance(image, np.ndarray) else 4 * math.prod(image.size)
            if size <= self.budget:
                self.budget -= size
                self.cache[position] = image
        size, box = self.spec.size, None
        if augmentation is not None and augmentation.by == "pillow":
            image = augmentation.pixels(image, size, random, self.spec.preprocessing.mean)
        if augmentation is not None and augmentation.erasing:
            box = draw_erasing(*size, augmentation.erasing, random)
        return Sample(position, image, box)

    def mix(
        self, samples: list[Sample], random: np.random.Generator, shard: int, num_shards: int
    ) -> Batch:
        """Return the batch of some samples, mixed, and normalized unless `as_uint8`."""
        errors = tuple((self.split.id(s.position), s.error) for s in samples if s.image is None)
        found, weights = [sample for sample in samples if sample.image is not None], None
        if self.weighted:
            samples += [Sample(0)] * (self.pad * (self.batch_size - len(samples)))
            weights = np.array([sample.image is not None for sample in samples], "float32")
            black = np.zeros((*self.spec.size, self.spec.channels), "uint8")
            samples = [s if s.image is not None else s._replace(image=black) for s in samples]
        elif not found:
            raise OSError(f"no image of a batch can be decoded: {errors[0][1]}")
        elif self.seed is None:
            samples = found
        else:
            others = itertools.cycle(found)
            samples = [next(others) if s.image is None else s for s in samples]
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
            images, labels = self.mixing(images, labels, random, shard, num_shards)
        if not self.as_uint8:
            images, boxes = self.normalize(images, boxes), None
        return Batch(images, labels, weights, boxes, errors)

    def normalize(self, images: np.ndarray, boxes: np.ndarray | None = None) -> np.ndarray:
        """Return the input of the model from uint8 images, with boxes of noise."""
        batch = np.empty(images.shape, "float32")
        for i, image in enumerate(images):  # One by one, to stay in the CPU's cache.
            normalize(image, self.spec.preprocessing, batch[i])
            if boxes is not None:
                erase_box(batch[i], boxes[i])
        return batch


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of `count` images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def _close(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


class ImageBatches(PyDataset):
    """Batches of a `Loader`, functions of the epoch and the index only, in any order of access.

    They are normalized for a model; `unreadable` has errors by id of the image. Grain prefetches in
    threads or, with `workers`, in processes, which import the main module and pass images on as
    uint8, normalized afterwards; those of a loader with a seed, beyond the end of an epoch. Keras's
    workers are not used, as they mix batches of two epochs.

    A full iteration starts the next epoch by `on_epoch_end`, as does Keras's `fit`, which also
    calls it before the first epoch. To keep in step with Keras, call `set_epoch` in the
    `on_epoch_begin` of a callback.

    Attributes:
        steps: Number of batches per epoch of a training, whatever the number of images; None for
            one pass over them.
    """

    is_packed = False

    def __init__(self, *arguments: Any, workers: int = 0, **options: Any):
        super().__init__(workers=1)
        self.loader = loader = Loader(*arguments, **options)
        self.processes, self.endless = workers, loader.seed is not None
        self.split, self.batch_size = loader.split, loader.batch_size
        self.unreadable: dict[Any, str] = {}
        loader.budget = IN_MEMORY_BYTES // max(workers, 1)
        loader.as_uint8 = workers > 0
        self._lock = threading.Lock()
        self.epoch, self._next, self._recent = 0, None, {}
        self.steps: int | None = None
        self._iterators: list[Any] = []
        # Also when the program ends, or processes would leave shared memory behind.
        weakref.finalize(self, _close, self._iterators)

    def __len__(self) -> int:
        return self.steps or len(self.loader)

    def dataset(self, *shard: int) -> Any:
        """Return batches i of epochs e, before `to_inputs`, as elements `e * len(self) + i`."""
        return self.loader.dataset(*shard)

    def to_inputs(self, batch: Batch) -> tuple:
        """Convert a batch of the dataset for `fit`. Called in the training process."""
        import keras

        # Arrays from Grain's processes are of a subclass in shared memory.
        images, labels, weights, boxes = keras.tree.map_structure(
            lambda array: array if type(array) is np.ndarray else np.array(array), tuple(batch[:4]),
            none_is_leaf=False,
        )  # fmt: skip
        for name, error in batch.errors:
            if name not in self.unreadable:
                self.unreadable[name] = error
                log.warning("An image is skipped (%d so far): %s", len(self.unreadable), error)
        if self.is_packed:
            images = packed(images, self.loader.spec.preprocessing, boxes)
        elif images.dtype == np.uint8:
            images = self.loader.normalize(images, boxes)
        return (images, labels) if weights is None else (images, labels, weights)

    def __getitem__(self, index: int) -> tuple:
        return self.get(index)

    def get(self, index: int, *shard: int) -> tuple:
        """Return batch `index` of the current epoch; `shard` is passed to `dataset`."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        with self._lock:
            key = self.epoch * len(self) + index, shard
            if key not in self._recent:
                batch = self.to_inputs(self._read(*key))
                # Keras reads the first two batches once before it begins.
                self._recent = {**dict([*self._recent.items()][-1:]), key: batch}
            return self._recent[key]

    def _read(self, step: int, shard: tuple[int, ...]) -> Any:
        """Return the batch of a step, from the iterator if it follows the last step."""
        follows, self._next = self._next == (step, shard), (step + 1, shard)
        if not follows:
            _close(self._iterators)
            return self.dataset(*shard)[step]
        try:
            if not self._iterators:
                stop = None if self.endless else (step // len(self) + 1) * len(self)
                self._iterators.append(self._prefetch(self.dataset(*shard)[step:stop]))
                if self.processes:  # They start with the first batch.
                    os.environ[WORKER] = "1"
            batch = next(self._iterators[0])
        except BaseException:
            _close(self._iterators)
            raise
        finally:
            os.environ.pop(WORKER, None)
        if not self.endless and (step + 1) % len(self) == 0:
            _close(self._iterators)
        return batch

    def _prefetch(self, dataset: Any) -> Any:
        """Return an iterator of a `grain.MapDataset`, in threads or processes."""
        from absl import flags
        from grain import MultiprocessingOptions, ReadOptions

        if not self.processes:
            threads = min(os.cpu_count() or 1, MAX_THREADS)
            return iter(dataset.to_iter_dataset(ReadOptions(threads, threads)))
        flags.FLAGS.is_parsed() or flags.FLAGS.mark_as_parsed()  # Grain's processes read flags.
        options = MultiprocessingOptions(self.processes, per_worker_buffer_size=2)
        return iter(dataset.to_iter_dataset(ReadOptions(1, 1)).mp_prefetch(options))

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @contextlib.contextmanager
    def as_pixels(self) -> Iterator[None]:
        """Return a context in which batches have the form of `keras_vitx.pixels`, for `fit`."""
        self._set_form(is_packed=True)
        try:
            yield
        finally:
            self._set_form(is_packed=False)

    def _set_form(self, is_packed):
        with self._lock:
            self.is_packed, self._recent = is_packed, {}
            if not self.processes:
                self.loader.as_uint8 = is_packed
                _close(self._iterators)  # They hold batches of the other form.


class TrainingBatches(ImageBatches):
    """Shuffled, augmented and mixed images, in full batches only; arguments as `Loader`."""

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: paths, or indices in the source."""
        first = (epoch * len(self) + index) * self.batch_size
        return [self.split.id(self.loader.position(first + i)) for i in range(self.batch_size)]


class EvaluationBatches(ImageBatches):
    """Images in order, with the evaluation transform; arguments as `Loader`."""

    def weighted(self) -> "EvaluationBatches":
        """Return these batches with weights (batch,), 0 for images that can't be decoded."""
        options = {name: getattr(self.loader, name) for name in Loader.__match_args__}
        return EvaluationBatches(**options | {"weighted": True})
