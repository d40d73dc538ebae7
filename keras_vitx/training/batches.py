"""Batches that are not of a data set: the user's own, and those that change others."""

import copy
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.backend import checked_dataset
from keras_vitx.data.loading import EvaluationBatches
from keras_vitx.outputs import Task, task_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.training.devices import in_use

log = logging.getLogger(__name__)
SplitName = Literal["train", "validation", "test"]


def evaluation_split(
    source: Any,
    model: keras.Model,
    split: SplitName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    **arguments: Any,
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names."""
    check_repeats(source)
    if crop_ratio is not None and (is_batches(source) or isinstance(source, data.Pipelines)):
        raise ValueError(
            f"`crop_ratio` must be None for cropped batches. Received: {crop_ratio!r}."
        )
    if is_batches(source):
        if split is not None:
            raise ValueError(f"`split` must be None for your own batches. Received: {split!r}.")
        return "batches", source, names_with(source)
    source = several_as_pipelines(source)
    if not isinstance(source, (data.Dataset, data.Pipelines)):
        source = data.load_dataset(source, **arguments)
    splits = [n for n in ("test", "validation", "train") if getattr(source, n) is not None]
    if split is not None and split not in splits:
        raise ValueError(f"`split` must be one of {', '.join(splits)}. Received: {split!r}.")
    split = split or splits[0]
    batches = getattr(source, split)
    if isinstance(source, data.Dataset):
        spec = ModelInput.of(model)
        if crop_ratio is not None:
            spec = ModelInput(spec.input_shape, spec.preprocessing.replace(crop_ratio=crop_ratio))
        strict = arguments.get("strict", False)
        pad = in_use().replicas > 1
        batches = EvaluationBatches(batches, spec, batch_size, pad=pad, strict=strict)
    return split, weighted(batches), source.class_names


def weighted(batches: Any) -> Any:
    """Return evaluation batches of a data set in which what can't be decoded has weight 0."""
    return batches.weighted() if isinstance(batches, EvaluationBatches) else batches


def check_repeats(source: Any) -> None:
    """Raise a ValueError for an iterator, which can be read only once."""
    if isinstance(source, Iterator):
        raise ValueError(
            "`source` must not be an iterator, which ends after one epoch. Received: "
            f"{type(source).__name__}. Pass a `PyDataset`, a `DataLoader` or arrays, for example."
        )


def are_numbers(class_names: Sequence[str]) -> bool:
    """Return whether the names are those of unnamed classes: "0", "1", ..."""
    return list(class_names) == [str(i) for i in range(len(class_names))]


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to load."""
    if isinstance(source, keras.utils.PyDataset):
        return True
    others = (str, os.PathLike, tuple, list, dict, np.ndarray, data.Dataset, Iterator)
    is_table = hasattr(source, "to_csv")  # A DataFrame, or a data set of Hugging Face.
    return isinstance(source, Iterable) and not isinstance(source, others) and not is_table


def several_as_pipelines(source: Any) -> Any:
    """Return a source, or `Pipelines` if it is batches: (train, validation[, test])."""
    if isinstance(source, (tuple, list)) and len(source) in (2, 3) and all(map(is_batches, source)):
        return data.Pipelines(*source[:2], names_with(source[0]), (), *source[2:])
    return source


def names_with(batches: Any) -> tuple[str, ...] | None:
    """Return the class names of batches that have them, as Keras's from directories do."""
    names = getattr(batches, "class_names", None)
    return None if names is None else tuple(map(str, names))


def checked(batches: Any, task: Task) -> Any:
    """Return batches whose labels all fit `task`; a ValueError if known ones do not.

    Those of your own batches are checked as they come, each before its step.
    """
    split = getattr(batches, "split", None)
    if split is not None:
        task_of(task.outputs, split.labels)
    elif hasattr(batches, "element_spec"):
        return checked_dataset(batches, task.check)
    elif hasattr(batches, "__len__"):
        return CheckedBatches(batches, task)
    return batches


def first_of(batches: Any) -> Any:
    """Return the first batch."""
    return batches[0] if isinstance(batches, keras.utils.PyDataset) else next(iter(batches))


def labels_of(batches: Any) -> np.ndarray:
    """Return the labels of the first batch; with several heads, those of the class token."""
    batch = first_of(batches)
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise ValueError(
            "`source` must have batches (images, labels) or (images, labels, weights). Received: "
            f"{type(batch).__name__}{f' of {len(batch)}' if hasattr(batch, '__len__') else ''}."
        )
    if len(getattr(batch[0], "shape", ())) == 3:
        raise ValueError(
            "`source` must have images (batch, height, width, channels). Received: images "
            f"{tuple(batch[0].shape)}, one by one. Call `.batch(batch_size)` on it."
        )
    return np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])


def steps_of(batches: Any, steps_per_epoch: int | None = None) -> int:
    """Return the number of batches per epoch; a ValueError if it is unknown, or too small."""
    try:
        steps = getattr(batches, "num_batches", None) or len(batches)
    except TypeError:
        steps = None
    if steps == sys.maxsize:  # The length of endless Grain datasets.
        steps = None
    if steps_per_epoch is not None:
        if steps is not None and steps_per_epoch > steps:
            raise ValueError(
                f"`steps_per_epoch` must be at most the {steps} batches of an epoch. Received: "
                f"{steps_per_epoch}."
            )
        return steps_per_epoch
    if steps is None:
        raise ValueError(
            "`steps_per_epoch` must be set for batches whose number is unknown or endless. "
            f"Received: None, with a {type(batches).__name__}."
        )
    return steps


class SequentialBatches(keras.utils.PyDataset):
    """An iterable as a dataset: each access returns the next batch, whatever its index."""

    is_sequential = True

    def __init__(self, batches: Iterable):
        super().__init__()
        self.iterable, self.iterator = batches, iter(())

    def __len__(self) -> int:
        return len(self.iterable)

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None if it is unknown."""
        try:
            return len(self.iterable)
        except TypeError:
            return None

    def __getitem__(self, index: int) -> Any:
        batch = next(self.iterator, None)
        if batch is None:
            self.iterator = iter(self.iterable)
            batch = next(self.iterator, None)
        if batch is None:
            raise ValueError(
                "`batches` must be an iterable that can be iterated repeatedly. Received: an empty "
                f"or exhausted {type(self.iterable).__name__}."
            )
        return batch


class BatchTransform(keras.utils.PyDataset):
    """Batches whose images or labels are changed by `transform`, which a subclass defines.

    Batches are `(images, labels)` or `(images, labels, weights)`. All other attributes are those
    of the wrapped batches. `elementwise` says whether `transform` treats each image independently,
    so that it can be applied to a shard of a batch.
    """

    elementwise = False

    def __init__(self, batches: Iterable):
        super().__init__()
        self.batches = (
            batches if isinstance(batches, keras.utils.PyDataset) else SequentialBatches(batches)
        )
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The current epoch: that of the wrapped batches, or counted here if they have none."""
        return getattr(self.batches, "epoch", self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def transform(self, images: np.ndarray, labels: Any, index: int) -> tuple[Any, Any]:
        """Return the changed images and labels (an array or a dictionary) of batch `index`."""
        raise NotImplementedError

    def with_batches(self, batches: Iterable) -> "BatchTransform":
        """Return a copy that wraps other batches."""
        wrapped = copy.copy(self)
        wrapped.batches = batches
        return wrapped

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None if the wrapped batches are endless."""
        return self.batches.num_batches

    def __getitem__(self, index: int) -> tuple:
        images, labels, *weights = self.wrapped_batch(index)
        return *self.transform(images, labels, index), *weights

    def wrapped_batch(self, index: int) -> tuple:
        """Return batch `index` of the wrapped batches, as arrays."""
        return keras.tree.map_structure(_as_array, tuple(self.batches[index]))

    def __iter__(self):
        for index in range(len(self)):
            yield self[index]
        self.on_epoch_end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def on_epoch_begin(self) -> None:
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self.batches.on_epoch_end()


class CheckedBatches(BatchTransform):
    """Batches whose labels are checked as they come."""

    def __init__(self, batches: Iterable, task: Task):
        super().__init__(batches)
        self.task, wrapped = task, self.batches
        self.workers, self.use_multiprocessing = wrapped.workers, wrapped.use_multiprocessing
        self.max_queue_size = wrapped.max_queue_size

    @property
    def set_epoch(self) -> Any:
        """That of the wrapped batches, if they have it."""
        return self.batches.set_epoch

    def __getitem__(self, index: int) -> tuple:
        batch = tuple(self.batches[index])
        labels = batch[1]["head"] if isinstance(batch[1], dict) else batch[1]
        self.task.check(keras.ops.convert_to_numpy(labels))
        return batch


class BatchRange(BatchTransform):
    """`count` batches from index `start` on, starting over at the end; None is all.

    Batch i of a `PyDataset` must not depend on earlier batches. In another iterable, the batches
    before `start` are read and skipped.
    """

    def __init__(self, batches: Any, start: int = 0, count: int | None = None):
        super().__init__(batches)
        self.start, self.length = start, self.batches.num_batches
        self.count = self.length if count is None else count
        if not getattr(self.batches, "is_sequential", False):
            self.workers, self.use_multiprocessing = batches.workers, batches.use_multiprocessing
            self.max_queue_size = batches.max_queue_size
        elif start:
            log.warning(
                "The first %d batches are skipped. The training continues bit for bit only if they "
                "come in the same order as before.",
                start,
            )
            for _ in range(start % (self.length or start + 1)):
                self.batches[0]

    @property
    def num_batches(self) -> int | None:
        return self.count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        index += self.start
        batch = self.batches[index if self.length is None else index % self.length]
        return tuple(batch) if isinstance(batch, list) else batch


def _as_array(value):
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)
