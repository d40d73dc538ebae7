"""Batches for training and evaluation: opened from a source, or supplied by the user."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.data.batches import EvaluationBatches
from keras_vitx.preprocessing import ModelInput
from keras_vitx.training.devices import in_use

log = logging.getLogger(__name__)
PartName = Literal["train", "validation", "test"]


def opened(source: Any, model: keras.Model, batch_size: int, **arguments: Any) -> data.Pipelines:
    """Return the batches of a source; the user's own batches are returned unchanged.

    Args:
        source: Any source that `data.pipelines` accepts; `data.Pipelines`; or batches: a
            `keras.utils.PyDataset`, or an iterable that can be iterated repeatedly, such
            as a `tf.data.Dataset` or a PyTorch `DataLoader`.
        model: The model that the images are prepared for.
        batch_size: Images per batch of a source.
        **arguments: Further arguments of `data.pipelines`.

    Raises:
        ValueError: if the number of classes of the source is not that of the model's outputs, or
            a fraction of the user's own batches is asked for.
    """
    if isinstance(source, data.Pipelines) or is_batches(source):
        if arguments.get("fraction", 1.0) != 1.0:
            raise ValueError(
                f"fraction: batches are used whole. Expected 1.0, got {arguments['fraction']}."
            )
        if isinstance(source, data.Pipelines):
            return source
        if arguments.get("mixing") is not None:
            log.warning(
                "Batches of your own are used as they are, without the augmentation and the mixing "
                "of the recipe."
            )
        return data.Pipelines(source)
    batches = data.pipelines(source, model, batch_size, pad=on_several_devices(), **arguments)
    names, outputs = batches.class_names, model.output_shape[-1]
    if names is not None and not are_numbers(names) and len(names) != outputs:
        two_of_one = len(names) == 2 and outputs == 1
        if not two_of_one:
            raise ValueError(
                f"model: it has {outputs} outputs, but the source has {len(names)} classes "
                f"({', '.join(names[:3])}, ...). Create the model with classes={len(names)}."
            )
    return batches


def part_of(
    source: Any,
    model: keras.Model,
    part: PartName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    **arguments: Any,
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a part, its images as batches in fixed order, and the class names.

    Args:
        source: As in `opened`.
        model: The model that the images are prepared for.
        part: Name of the part; None is the first of test, validation and train that
            the source has. The user's own batches have no parts.
        batch_size: Images per batch of a source.
        crop_ratio: Replaces that of the model's preprocessing.
        **arguments: Further arguments of `data.open_source`.

    Raises:
        ValueError: if the source does not have that part, or batches can't be cropped.
    """
    if crop_ratio is not None and (is_batches(source) or isinstance(source, data.Pipelines)):
        raise ValueError(
            f"`crop_ratio` must be None for batches, which are cropped. Received: {crop_ratio!r}."
        )
    if is_batches(source):
        if part is not None:
            raise ValueError(f"`part` must be None for batches of your own. Received: {part!r}.")
        return "batches", source, None
    if not isinstance(source, (data.Source, data.Pipelines)):
        source = data.open_source(source, **arguments)
    names = ("test", "validation", "train")
    present = [name for name in names if getattr(source, name) is not None]
    if part is not None and part not in present:
        raise ValueError(f"`part` must be one of {', '.join(present)}. Received: {part!r}.")
    part = part or present[0]
    found = getattr(source, part)
    if isinstance(source, data.Source):
        facts = ModelInput.of(model)
        if crop_ratio is not None:
            preprocessing = facts.preprocessing.but(crop_ratio=crop_ratio)
            facts = ModelInput(facts.input_shape, preprocessing)
        found = EvaluationBatches(found, facts, batch_size, pad=on_several_devices())
    return part, found, source.class_names


class Perturbed(keras.utils.PyDataset):
    """Batches whose images are changed by a function.

    Args:
        batches: The batches.
        perturb: A function of the images, the labels and the index of a batch that returns
            the images.
        order: Index of the model's output for each label; None if they are the same.

    Raises:
        ValueError: if the batches can't be taken by index, or are split between devices.
    """

    def __init__(
        self,
        batches: Any,
        perturb: Callable[[Any, np.ndarray, int], np.ndarray],
        order: Sequence[int] | None = None,
    ):
        super().__init__()
        if not isinstance(batches, keras.utils.PyDataset) or on_several_devices():
            raise ValueError(
                "`perturb` needs a source or a `keras.utils.PyDataset`, on one device. Received: "
                f"{type(batches).__name__}."
            )
        self.batches, self.perturb, self.order = batches, perturb, order

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        images, labels, *weights = self.batches[index]
        outputs = np.asarray(labels)
        if self.order is not None and outputs.ndim == 1:
            outputs = np.asarray(self.order)[outputs]
        return self.perturb(images, outputs, index), labels, *weights


def on_several_devices() -> bool:
    """Return whether each batch is split between devices, in equal parts."""
    return in_use().replicas > 1


def are_numbers(class_names: Sequence[str]) -> bool:
    """Return whether the names are the default ones of unnamed classes: "0", "1", ..."""
    return list(class_names) == [str(i) for i in range(len(class_names))]


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to open."""
    if isinstance(source, keras.utils.PyDataset):
        return True
    opens = (str, os.PathLike, tuple, list, dict, np.ndarray, data.Source, Iterator)
    return isinstance(source, Iterable) and not isinstance(source, opens)


def labels_of(batches: Any) -> np.ndarray:
    """Return the labels of the first batch; with several heads, those of the class token."""
    batch = batches[0] if isinstance(batches, keras.utils.PyDataset) else next(iter(batches))
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise ValueError(
            "source: expected batches (images, labels) or (images, labels, weights), got "
            f"{type(batch).__name__}{f' of {len(batch)}' if hasattr(batch, '__len__') else ''}."
        )
    labels = batch[1]["head"] if isinstance(batch[1], dict) else batch[1]
    return np.asarray(labels)


def steps_of(batches: Any) -> int:
    """Return the number of batches in an epoch.

    Raises:
        ValueError: if it is unknown, as for infinite batches.
    """
    try:
        steps = len(batches)
    except TypeError as error:
        raise ValueError(
            f"source: the number of batches is unknown ({error}). Give `steps_per_epoch`."
        ) from error
    if steps == sys.maxsize:  # how Grain says it
        raise ValueError("source: the batches are endless. Give `steps_per_epoch`.")
    return steps
