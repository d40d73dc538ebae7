"""Batches of images and labels as a `keras.utils.PyDataset`, made ahead by Grain."""

import contextlib
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.backend import WORKER
from keras_vitx.data.augmentation.erasing import noise
from keras_vitx.data.sources.dataset import Split
from keras_vitx.data.worker import Batch, EvaluationMaker, Maker, TrainingMaker, batch_of_step
from keras_vitx.preprocessing import Preprocessing

log = logging.getLogger(__name__)
# Threads that make batches; with more, Python's lock leaves little to gain.
MAX_THREADS = 8
IN_MEMORY_BYTES = 512 * 2**20
"""Decoded images of a split are kept in memory up to this size."""


class Batches(keras.utils.PyDataset):
    """Batches that are a function of the epoch and the index only.

    `batches[i]` is batch i of the current epoch, while Grain makes the next ones in threads or
    processes, several at once. Any order of access gives the same batches; only the order of the
    epoch is fast. The workers of Keras are not used, since they mix batches of two epochs.

    A full iteration ends with `on_epoch_end`, as in `fit` of Keras, and so starts the next
    epoch.

    Args:
        make: A function of an epoch and an index that returns a batch of NumPy arrays, with the
            number of batches per epoch as its length. It is called in threads or processes.
        workers: Number of processes that make batches; 0 for threads of this process. Processes
            start by importing the main module, so a script needs `if __name__ == "__main__":`.
        endless: Whether the next epoch is made ahead as well; otherwise processes end with the
            epoch.

    Attributes:
        epoch: The current epoch. `fit` of Keras calls `on_epoch_end` once before the first
            epoch as well. To keep in step with Keras, call `set_epoch` in the
            `on_epoch_begin` of a callback.
    """

    def __init__(self, make: Callable[..., Any], workers: int = 0, endless: bool = False):
        super().__init__(workers=1)
        self.make, self.processes, self.endless = make, workers, endless
        self.threads = min(os.cpu_count() or 1, MAX_THREADS)
        self.epoch = 0
        self._lock = threading.Lock()
        self._iterator, self._next, self._recent = None, None, {}

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.make)

    def finish(self, batch: Any) -> tuple:
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
            key = self.epoch * len(self) + index, share
            if key not in self._recent:
                batch = self.finish(self._read(*key))
                # Keras asks for the first two batches once before it begins.
                self._recent = {**dict([*self._recent.items()][-1:]), key: batch}
            return self._recent[key]

    def _read(self, step: int, share: tuple[int, ...]) -> Any:
        """Return the batch of a step: the next one of the iterator, if steps follow each other."""
        follows, self._next = self._next == (step, share), (step + 1, share)
        if not follows:
            self._close()
            return batch_of_step(self.make, len(self), share, step)
        try:
            if self._iterator is None:
                self._iterator = iter(self.dataset(step, *share))
                # At the end of the program, too: processes would leave shared memory behind.
                self._closing = weakref.finalize(self, self._iterator.close)
                # The processes start with the first batch.
                with _without_keras() if self.processes else contextlib.nullcontext():
                    batch = next(self._iterator)
            else:
                batch = next(self._iterator)
        except BaseException:
            self._close()
            raise
        if not self.endless and (step + 1) % len(self) == 0:
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
        from absl import flags
        from absl import logging as absl_logging

        # Without JAX, Grain logs as it is imported that its profiler is missing.
        absl_logging.get_absl_logger().addFilter(_no_profiler)
        import grain  # slow, and not needed to predict

        stop = sys.maxsize if self.endless else (start // len(self) + 1) * len(self)
        make = functools.partial(batch_of_step, self.make, len(self), share)
        steps = grain.MapDataset.range(start, stop).map(make)
        if not self.processes:
            return steps.to_iter_dataset(grain.ReadOptions(self.threads, self.threads))
        if not flags.FLAGS.is_parsed():  # Grain's processes read them.
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(self.processes, per_worker_buffer_size=2)
        return steps.to_iter_dataset(grain.ReadOptions(1, 1)).mp_prefetch(options)

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

    def _close(self):
        if self._iterator is not None:
            self._closing()
        self._iterator = None


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Let processes that start meanwhile import the package without Keras."""
    os.environ[WORKER] = "1"
    try:
        yield
    finally:
        os.environ.pop(WORKER, None)


def _no_profiler(record: logging.LogRecord) -> bool:
    return "jax profiler" not in record.getMessage()


class ImageBatches(Batches):
    """Batches of images of a split, normalized for a model.

    Workers hand over uint8. On an accelerator under PyTorch and JAX, images are normalized and
    erased on the device; on a CPU, and under TensorFlow, by the workers. The result is the same.

    Attributes:
        unreadable: The error of each image that could not be decoded, by id.
    """

    make: Maker

    def __init__(self, make: Maker, workers: int = 0, endless: bool = False):
        super().__init__(make, workers, endless)
        self.unreadable: dict[Any, str] = {}

    @property
    def split(self) -> Split:
        """The images and their labels."""
        return self.make.split

    @property
    def batch_size(self) -> int:
        """Number of images per batch."""
        return self.make.batch_size

    def finish(self, batch: Batch) -> tuple:
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
            images = on_device(images, boxes, self.make.spec.preprocessing)
        return (images, labels) if weights is None else (images, labels, weights)


class TrainingBatches(ImageBatches):
    """Shuffled, augmented and mixed images, in full batches only; arguments as `TrainingMaker`.

    Batch i of epoch e is the i-th slice of a permutation seeded by (seed, e), augmented and
    mixed with random numbers seeded by (seed, e, i): on any number of workers, and on every
    backend.
    """

    def __init__(self, *arguments: Any, workers: int = 0, **options: Any):
        budget = IN_MEMORY_BYTES // max(workers, 1)
        make = TrainingMaker(*arguments, on_device=has_accelerator(), budget=budget, **options)
        super().__init__(make, workers, endless=True)
        if make.keras_cv is not None:
            self.threads = 1

    def ids(self, epoch: int, index: int) -> list[Any]:
        """Return the ids of the images of a batch: their paths, or indices in the source."""
        return [self.split.id(position) for position in self.make.positions(epoch, index)]


class EvaluationBatches(ImageBatches):
    """Images in order, with the evaluation transform; arguments as `EvaluationMaker`."""

    def __init__(self, *arguments: Any, **options: Any):
        options |= {"on_device": has_accelerator(), "budget": IN_MEMORY_BYTES}
        super().__init__(EvaluationMaker(*arguments, **options))


def has_accelerator() -> bool:
    """Return whether Keras computes on a GPU or TPU to which batches can be sent as uint8.

    `fit` passes batches through `tf.data` under TensorFlow, and `keras.distribution` splits them.
    """
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    if keras.backend.backend() == "jax" and keras.distribution.distribution() is None:
        import jax

        return jax.default_backend() != "cpu"
    return False


def on_device(images: np.ndarray, boxes: np.ndarray | None, preprocessing: Preprocessing) -> Any:
    """Return a tensor of uint8 images as `Maker.normalized` returns them, made on the device."""
    _, height, width, channels = images.shape
    mean, std = (
        ops.convert_to_tensor(values, "float32")
        for values in (preprocessing.mean, preprocessing.std)
    )
    images = (ops.cast(ops.convert_to_tensor(images), "float32") / 255.0 - mean) / std
    if boxes is None:
        return images
    boxes = ops.convert_to_tensor(boxes)[:, :, None]
    rows, columns = ops.arange(height), ops.arange(width)
    inside_rows = (rows >= boxes[:, 0]) & (rows < boxes[:, 0] + boxes[:, 2])
    inside_columns = (columns >= boxes[:, 1]) & (columns < boxes[:, 1] + boxes[:, 3])
    inside = ops.logical_and(inside_rows[:, :, None], inside_columns[:, None])
    count = height * width * channels
    found = ops.take(ops.convert_to_tensor(noise(count)), boxes[:, 4] + ops.arange(count))
    return ops.where(inside[..., None], ops.reshape(found, images.shape), images)
