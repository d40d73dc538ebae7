"""Batches of images and labels as a `keras.utils.PyDataset`, prefetched by Grain."""

import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import WORKER
from keras_vitx.data.augmentation.erasing import noise
from keras_vitx.data.worker import Batch, EvaluationLoader, Loader, TrainingLoader, batch_of_step
from keras_vitx.preprocessing import Preprocessing

log = logging.getLogger(__name__)
# Threads that make batches; more gain little because of Python's lock.
MAX_THREADS = 8
IN_MEMORY_BYTES = 512 * 2**20
"""Maximum size of the cache of decoded images of a split."""


def _close(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


class Batches(keras.utils.PyDataset):
    """Batches that are functions of the epoch and the index only, in any order of access.

    `load_batch(epoch, index)` returns a batch of NumPy arrays; its length is the number of batches.
    Grain prefetches in threads or, with `workers`, in processes, which import the main module.
    Keras's workers are not used, as they mix batches of two epochs. With `endless`, the next epoch
    is prefetched as well; otherwise processes end with the epoch.

    A full iteration starts the next epoch by `on_epoch_end`, as does Keras's `fit`, which also
    calls it before the first epoch. To keep in step with Keras, call `set_epoch` in the
    `on_epoch_begin` of a callback.
    """

    def __init__(self, load_batch: Callable[..., Any], workers: int = 0, endless: bool = False):
        super().__init__(workers=1)
        self.load_batch, self.processes, self.endless = load_batch, workers, endless
        self.threads = min(os.cpu_count() or 1, MAX_THREADS)
        self.epoch = 0
        self._lock = threading.Lock()
        self._next, self._recent = None, {}
        self._iterators: list[Any] = []
        # Also when the program ends, or processes would leave shared memory behind.
        weakref.finalize(self, _close, self._iterators)

    def __len__(self) -> int:
        return len(self.load_batch)

    def to_inputs(self, batch: Any) -> tuple:
        """Convert a batch of `load_batch` for `fit`. Called in the training process."""
        return batch

    def __getitem__(self, index: int) -> tuple:
        return self.get(index)

    def get(self, index: int, *shard: int) -> tuple:
        """Return batch `index` of the current epoch; `shard` is passed to `load_batch`."""
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
            return batch_of_step(self.load_batch, len(self), shard, step)
        try:
            if not self._iterators:
                self._iterators.append(iter(self.dataset(step, *shard)))
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

    def dataset(self, start: int = 0, *shard: int) -> Any:
        """Return the batches before `to_inputs` as a Grain dataset, from a step on.

        Step s is batch `s % len(self)` of epoch `s // len(self)`. The dataset ends with the epoch,
        unless batches are endless.
        """
        from absl import flags
        from absl import logging as absl_logging

        # Without JAX, Grain logs on import that its profiler is missing.
        absl_logging.get_absl_logger().addFilter(lambda x: "jax profiler" not in x.getMessage())
        import grain  # slow, and not needed to predict

        stop = sys.maxsize if self.endless else (start // len(self) + 1) * len(self)
        load = functools.partial(batch_of_step, self.load_batch, len(self), shard)
        steps = grain.MapDataset.range(start, stop).map(load)
        if not self.processes:
            return steps.to_iter_dataset(grain.ReadOptions(self.threads, self.threads))
        if not flags.FLAGS.is_parsed():  # Grain's processes read flags.
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(self.processes, per_worker_buffer_size=2)
        return steps.to_iter_dataset(grain.ReadOptions(1, 1)).mp_prefetch(options)

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ImageBatches(Batches):
    """Batches of images of a split, normalized for a model.

    Images from processes, and those for an accelerator, are passed as uint8, a fourth of the bytes,
    and normalized and erased afterwards with the same result. `unreadable` has the error of each
    image that could not be decoded, by id.
    """

    def __init__(self, load_batch: Loader, workers: int = 0, endless: bool = False):
        super().__init__(load_batch, workers, endless)
        self.split, self.batch_size = load_batch.split, load_batch.batch_size
        self.unreadable: dict[Any, str] = {}
        load_batch.budget = IN_MEMORY_BYTES // max(workers, 1)
        load_batch.as_uint8 = has_accelerator() or workers > 0

    def to_inputs(self, batch: Batch) -> tuple:
        # Arrays from Grain's processes are of a subclass in shared memory.
        images, labels, weights, boxes = keras.tree.map_structure(
            lambda array: array if type(array) is np.ndarray else np.array(array), tuple(batch[:4]),
            none_is_leaf=False,
        )  # fmt: skip
        for name, error in batch.errors:
            if name not in self.unreadable:
                self.unreadable[name] = error
                log.warning("An image is skipped (%d so far): %s", len(self.unreadable), error)
        if images.dtype == np.uint8:
            if has_accelerator():
                images = on_device(images, boxes, self.load_batch.spec.preprocessing)
            else:
                images = self.load_batch.normalize(images, boxes)
        return (images, labels) if weights is None else (images, labels, weights)


class TrainingBatches(ImageBatches):
    """Shuffled, augmented and mixed images, in full batches only; arguments as `TrainingLoader`."""

    def __init__(self, *arguments: Any, workers: int = 0, **options: Any):
        super().__init__(TrainingLoader(*arguments, **options), workers, endless=True)
        self.targets = self.load_batch.targets

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: paths, or indices in the source."""
        return [self.split.id(position) for position in self.load_batch.positions(epoch, index)]


class EvaluationBatches(ImageBatches):
    """Images in order, with the evaluation transform; arguments as `EvaluationLoader`."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(EvaluationLoader(*arguments, **options))


def has_accelerator() -> bool:
    """Return whether images can be sent to a GPU or TPU as uint8.

    They can't under TensorFlow, whose `fit` uses `tf.data`, or with `keras.distribution`.
    """
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    if keras.backend.backend() == "jax" and keras.distribution.distribution() is None:
        import jax

        return jax.default_backend() != "cpu"
    return False


def on_device(images: np.ndarray, boxes: np.ndarray | None, preprocessing: Preprocessing) -> Any:
    """Return the result of `Loader.normalize`, computed on the device."""
    _, height, width, channels = images.shape
    statistics = preprocessing.mean, preprocessing.std
    mean, std = (ops.convert_to_tensor(values, "float32") for values in statistics)
    images = (ops.cast(ops.convert_to_tensor(images), "float32") / 255.0 - mean) / std
    if boxes is None:
        return images
    boxes = ops.convert_to_tensor(boxes)[:, :, None]
    rows, columns = ops.arange(height), ops.arange(width)
    inside_rows = (rows >= boxes[:, 0]) & (rows < boxes[:, 0] + boxes[:, 2])
    inside_columns = (columns >= boxes[:, 1]) & (columns < boxes[:, 1] + boxes[:, 3])
    inside = ops.logical_and(inside_rows[:, :, None], inside_columns[:, None])
    count = height * width * channels
    values = ops.take(ops.convert_to_tensor(noise(count)), boxes[:, 4] + ops.arange(count))
    return ops.where(inside[..., None], ops.reshape(values, images.shape), images)
