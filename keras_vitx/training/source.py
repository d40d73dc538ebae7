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
from keras_vitx.data.sources.names import are_numbers, names_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shorten
from keras_vitx.training.batches import Batches, as_batches, labels_and_size, length_of, weigh
from keras_vitx.training.classifier import Classifier
from keras_vitx.training.devices import check_batch, in_use
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.task import Task, task_of

log = logging.getLogger(__name__)
SplitName = Literal["train", "validation", "test"]
OF_PIPELINES = ("seed", "workers", "pixels")
"""The arguments of `data.pipelines` that `fit` sets; others are those of `data.load_dataset`."""


@dataclass(frozen=True)
class TrainingData:
    """The batches of a training, and what its steps need to know of them.

    Attributes:
        recipe: The recipe, adapted to the number of images.
        train: Training batches.
        validation: Batches that select the best epoch, or None.
        test: Batches for the end of the training, or None.
        steps: Number of training batches per epoch.
        task: The task, from the outputs of the model and the labels; None without `outputs`.
        class_names: Label i means `class_names[i]`; None if there are no class names.
        class_weight: Weight of each label in the loss of several labels per image, or None; those
            of classes are sample weights of the batches.
        held_out: Names of the images held out for validation.
    """

    recipe: Recipe
    train: Batches
    validation: Batches | None
    test: Batches | None
    steps: int
    task: Task | None
    class_names: tuple[str, ...] | None
    class_weight: tuple[float, ...] | None
    held_out: list[str]


def open_data(
    source: Any,
    classifier: Classifier,
    recipe: Recipe,
    fixed: Collection[str] = (),
    class_weight: Mapping[Any, float] | None = None,
    **how_to_load: Any,
) -> TrainingData:
    """Open a source of `fit` for a model; settings in `fixed` are not adapted to it.

    Your own batches stay as they are. `how_to_load` has arguments of `data.load_dataset` and
    `data.pipelines`.
    """
    recipe, batches, held_out = open_batches(source, classifier, recipe, fixed, how_to_load)
    names, train = batches.class_names, batches.train
    check_names(names, classifier)
    labels, size = labels_and_size(train)
    recipe, steps = adapt_recipe(recipe, size, length_of(train), fixed)
    weights = class_weight and label_weights(class_weight, names, classifier)
    task = classifier.outputs and task_of(classifier.outputs, labels)
    is_regression = weights and task and task.kind == "regression"
    check(not is_regression, "`class_weight` must be None for regression.", class_weight)
    if weights and not (task and task.kind == "multi-label"):
        train = train.map(functools.partial(weigh, np.array(weights, "float32")))
        weights = None
    return TrainingData(
        recipe=recipe,
        train=train,
        validation=with_padding(batches.validation),
        test=with_padding(batches.test),
        steps=steps,
        task=task,
        class_names=names,
        class_weight=weights,
        held_out=held_out,
    )


def open_batches(
    source: Any,
    classifier: Classifier,
    recipe: Recipe,
    fixed: Collection[str],
    how_to_load: Mapping[str, Any],
) -> tuple[Recipe, data.Pipelines, list[str]]:
    """Return the recipe for a source, its batches, and the names of what is held out."""
    batches = user_batches(source)
    if batches is not None:
        passed = how_to_load.keys() - {"seed", "pixels"}
        rule = "`validation_split`, `fraction` and `workers` must not be set for your own batches."
        check(not passed, rule, {name: how_to_load[name] for name in passed})
        return recipe, batches, []
    of_batches = {name: how_to_load[name] for name in OF_PIPELINES if name in how_to_load}
    of_images = {name: value for name, value in how_to_load.items() if name not in OF_PIPELINES}
    seed = how_to_load.get("seed", 0)
    dataset = data.load_dataset(source, seed=seed, **{"validation_split": 0.1, **of_images})
    check(dataset.train is not None, "`source` must have training images.", dataset.name)
    recipe = recipe.for_images(dataset.train.size, fixed)
    batches = data.pipelines(
        dataset,
        classifier.model,
        recipe.part_of_batch,
        augmentation=recipe.augmentation,
        mixing=recipe.mixing,
        validation_split=0,
        **of_batches,
    )
    return recipe, batches, dataset.validation.names() if dataset.held_out else []


def check_names(names: Sequence[str] | None, classifier: Classifier) -> None:
    """Raise a ValueError if a model has more outputs than there are classes, which have names."""
    names, classes = names or (), classifier.model.output_shape[-1]
    # `pipelines` raises an error for more classes than outputs.
    fits = len(names) in (0, classes) or classes == 1 or are_numbers(names)
    rule = f"`model` must have classes={len(names)} for the classes {shorten(names)}."
    check(fits, rule, classes)


def adapt_recipe(
    recipe: Recipe, size: int, length: int | None, fixed: Collection[str]
) -> tuple[Recipe, int]:
    """Return the recipe for batches of a size, and their number per epoch."""
    check_batch(size, in_use())
    steps = recipe.steps_per_epoch or length
    check(steps is not None, "`steps_per_epoch` must be set for batches of unknown number.", steps)
    size *= recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate follows the actual batch size.
        recipe = replace(recipe, batch_size=size)
    updates = recipe.all_epochs * steps // recipe.accumulate_steps
    text = "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g."
    log.info(text, updates, recipe.all_epochs, steps, size, recipe.peak)
    return recipe, steps


def label_weights(
    weights: Mapping[Any, float],
    class_names: Sequence[str] | None,
    classifier: Classifier,
) -> tuple[float, ...]:
    """Return the weight of each label, from weights by label or name; others weigh 1."""
    classes = max(classifier.model.output_shape[-1], 2)
    label_of = {name: label for label, name in enumerate(class_names or ())}
    by_label = {label_of.get(key, key): float(weight) for key, weight in weights.items()}
    unknown = by_label.keys() - set(range(classes))
    rule = f"`class_weight` must have labels in 0..{classes - 1} or names of classes as keys."
    check(not unknown, rule, next(iter(unknown), None))
    return tuple(by_label.get(label, 1.0) for label in range(classes))


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
    splits = [split if split is None else as_batches(split) for split in splits]
    return data.Pipelines(*splits[:2], names and names_of(names), test=splits[2])


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to load."""
    sources = (str, os.PathLike, tuple, list, np.ndarray, data.Dataset)
    is_tensor = keras.ops.is_tensor(source)
    return isinstance(source, Iterable) and not isinstance(source, sources) and not is_tensor


def with_padding(batches: Batches | None) -> Batches | None:
    """Return evaluation batches in which what can't be decoded, and padding, has weight 0."""
    if not isinstance(batches, ImageBatches) or batches.loader.seed is not None:
        return batches
    return batches.replace(weighted=True, pad=in_use().replicas > 1)


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
