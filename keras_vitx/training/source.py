"""The data of a training or an evaluation, opened once: sources, or a user's own batches."""

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.checks import check
from keras_vitx.data.loading import ImageBatches, Loader
from keras_vitx.data.sources.names import names_of
from keras_vitx.outputs import Outputs
from keras_vitx.preprocessing import ModelInput
from keras_vitx.training.batches import Batches, as_batches, labels_and_size, length_of, weigh
from keras_vitx.training.devices import check_batch, in_use
from keras_vitx.training.devices.replicas import shard_of
from keras_vitx.training.recipe import OFF, Recipe
from keras_vitx.training.task import Task, task_of

log = logging.getLogger(__name__)
OF_IMAGES = {*OFF, *(name for part in OFF.values() for name in vars(part))}
SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class TrainingData:
    """The batches of a training, and what its steps need to know of them.

    Attributes:
        recipe: The recipe, adapted to the number of images.
        batches: The training batches of this process, and those of evaluation, if there are any.
        steps: Number of training batches per epoch.
        task: The task, from the outputs of the model and the labels; None without `outputs`.
        class_weight: Weight of each label in the loss of several labels per image, or None; those
            of classes are sample weights of the batches.
        held_out: Names of the images held out for validation.
    """

    recipe: Recipe
    batches: data.Pipelines
    steps: int
    task: Task | None
    class_weight: tuple[float, ...] | None
    held_out: list[str]


def open_data(
    source: Any,
    model: keras.Model,
    outputs: Outputs | None,
    recipe: Recipe,
    fixed: Collection[str] = (),
    class_weight: Mapping[Any, float] | None = None,
    *,
    seed: int = 0,
    pixels: bool = False,
    **how_to_load: Any,
) -> TrainingData:
    """Open a source of `fit` for a model; settings in `fixed` are not adapted to it.

    Your own batches stay as they are. `how_to_load` has arguments of `data.load_dataset`, and
    `workers`.
    """
    batches, held_out = user_batches(source), []
    if batches is not None:
        on = [name for name in fixed if getattr(recipe, name, True) is not None]
        passed = [*how_to_load, *(name for name in on if name in OF_IMAGES)]
        names = ", ".join(f"`{name}`" for name in passed)
        check(not passed, f"{names} must not be set for your own batches.", type(source).__name__)
    else:
        workers = how_to_load.pop("workers", 0)
        dataset = data.load_dataset(source, seed=seed, **{"validation_split": 0.1, **how_to_load})
        check(dataset.train is not None, "`source` must have training images.", dataset.name)
        recipe = recipe.for_images(len(dataset.train), fixed)
        batches = data.pipelines(
            dataset,
            model,
            recipe.part_of_batch,
            augmentation=recipe.augmentation,
            mixing=recipe.mixing,
            validation_split=0,
            seed=seed,
            workers=workers,
            pixels=pixels,
        )
        batches = user_batches(batches)
        held_out = dataset.validation.names() if dataset.held_out else []

    train, names = batches.train, batches.class_names
    steps = recipe.steps_per_epoch or length_of(train)
    labels, size = labels_and_size(train)
    check_batch(size, in_use())
    check(steps is not None, "`steps_per_epoch` must be set for batches of unknown number.", steps)
    size *= recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate follows the actual batch size.
        recipe = replace(recipe, batch_size=size)
    updates = recipe.all_epochs * steps // recipe.accumulate_steps
    text = "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g."
    log.info(text, updates, recipe.all_epochs, steps, size, recipe.peak)

    weights = class_weight and label_weights(class_weight, names, model.output_shape[-1])
    task = outputs and task_of(outputs, labels)
    is_regression = weights and task and task.kind == "regression"
    check(not is_regression, "`class_weight` must be None for regression.", class_weight)
    if weights and not (task and task.kind == "multi-label"):
        train = train.map(functools.partial(weigh, np.array(weights, "float32")))
        weights = None
    batches = batches._replace(train=shard_of(train))
    return TrainingData(recipe, batches, steps, task, weights, held_out)


def label_weights(
    weights: Mapping[Any, float], class_names: Sequence[str] | None, classes: int
) -> tuple[float, ...]:
    """Return the weight of each label, from weights by label or name; others weigh 1."""
    label_of = {name: label for label, name in enumerate(class_names or ())}
    by_label = {label_of.get(key, key): float(weight) for key, weight in weights.items()}
    labels = range(max(classes, 2))
    unknown = by_label.keys() - set(labels)
    rule = f"`class_weight` must have labels in 0..{labels[-1]} or names of classes as keys."
    check(not unknown, rule, next(iter(unknown), None))
    return tuple(by_label.get(label, 1.0) for label in labels)


def with_padding(source: Any) -> Batches | None:
    """Return batches; in those of evaluation, what can't be decoded, and padding, has weight 0."""
    batches = None if source is None else as_batches(source)
    if isinstance(batches, ImageBatches) and batches.loader.seed is None:
        batches = batches.replace(weighted=True, pad=in_use().replicas > 1)
    return batches


def user_batches(source: Any) -> data.Pipelines | None:
    """Return a user's batches, also (train, validation[, test]); None for a source to load.

    Raises a ValueError for an iterator, which can be read only once.
    """
    several = isinstance(source, (tuple, list)) and len(source) in (2, 3)
    if isinstance(source, data.Pipelines):
        splits, names = (source.train, source.validation, source.test), source.class_names
    elif several and all(map(is_batches, source)):
        splits, names = (*source, None), None
    elif is_batches(source):
        # As Keras's from directories have them.
        splits, names = (source, None, None), getattr(source, "class_names", None)
    else:
        return None
    rule = "`source` must not be an iterator, which ends after one epoch: pass a `PyDataset`."
    check(not isinstance(source, Iterator), rule, type(source).__name__)
    train, validation, test, *_ = map(with_padding, splits)
    return data.Pipelines(train, validation, names and names_of(names), test=test)


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to load."""
    sources = (str, os.PathLike, tuple, list, np.ndarray, data.Dataset)
    is_tensor = keras.ops.is_tensor(source)
    return isinstance(source, Iterable) and not isinstance(source, sources) and not is_tensor


def evaluation_split(
    source: Any,
    model: keras.Model,
    split: SplitName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    pixels: bool = False,
) -> tuple[str, Batches, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names."""
    is_single, batches = is_batches(source), user_batches(source)
    rule = "`crop_ratio` must be None for cropped batches."
    check(crop_ratio is None or batches is None, rule, crop_ratio)
    if is_single:
        check(split is None, "`split` must be None for your own batches.", split)
        return "batches", batches.train, batches.class_names
    opened = data.load_dataset(source, validation_split=0) if batches is None else batches
    splits = [n for n in ("test", "validation", "train") if getattr(opened, n) is not None]
    check(split in (None, *splits), f"`split` must be one of {', '.join(splits)}.", split)
    split = split or splits[0]
    images = getattr(opened, split)
    if batches is None:
        inputs, strict = ModelInput.of(model), opened.strict
        if crop_ratio is not None:
            preprocessing = inputs.preprocessing.replace(crop_ratio=crop_ratio)
            inputs = replace(inputs, preprocessing=preprocessing)
        images = ImageBatches(Loader(images, inputs, batch_size, strict=strict), pixels)
    return split, with_padding(images), opened.class_names
