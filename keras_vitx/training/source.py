"""The data of a training or an evaluation, opened once: sources, or own batches."""

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.checks import check
from keras_vitx.data.loading import ImageBatches, Loader
from keras_vitx.data.sources.names import names_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shorten
from keras_vitx.training.batches import labels_and_size, length_of, map_batches, weigh
from keras_vitx.training.classifier import Classifier
from keras_vitx.training.devices import check_batch, in_use
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.task import Task, task_of

log = logging.getLogger(__name__)
SplitName = Literal["train", "validation", "test"]


class TrainingData(NamedTuple):
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
    train: Any
    validation: Any
    test: Any
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
    *,
    class_weight: Mapping[Any, float] | None = None,
    seed: int = 0,
    workers: int = 0,
    pixels: bool = False,
    **how_to_load: Any,
) -> TrainingData:
    """Open a source of `fit` for a model; settings in `fixed` are not adapted to it.

    Your own batches stay as they are. The other arguments are those of `data.load_dataset` and
    `data.pipelines`.
    """
    model = classifier.model
    batches, held_out = own_batches(source), []
    if batches is not None:
        rule = "`validation_split`, `fraction` and `workers` must not be set for your own batches."
        check(not how_to_load and not workers, rule, how_to_load or workers)
    else:
        how_to_load = {"validation_split": 0.1, **how_to_load}
        dataset = data.load_dataset(source, seed=seed, **how_to_load)
        check(dataset.train is not None, "`source` must have training images.", dataset.name)
        recipe = recipe.for_images(dataset.train.size, fixed)
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
        if dataset.held_out:
            held_out = dataset.validation.names()
    names, classes = batches.class_names or (), model.output_shape[-1]
    # `pipelines` raises an error for more classes than outputs.
    fits = len(names) in (0, classes) or classes == 1 or are_numbers(names)
    rule = f"`model` must have classes={len(names)} for the classes {shorten(names)}."
    check(fits, rule, classes)
    train, steps = batches.train, recipe.steps_per_epoch or length_of(batches.train)
    check(steps is not None, "`steps_per_epoch` must be set for batches of unknown number.", steps)
    labels, size = labels_and_size(train)
    check_batch(size, in_use())
    size *= recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate follows the actual batch size.
        recipe = recipe.replace(batch_size=size)
    updates = recipe.all_epochs * steps // recipe.accumulate_steps
    text = "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g."
    log.info(text, updates, recipe.all_epochs, steps, size, recipe.peak)
    validation, test = map(with_weights, (batches.validation, batches.test))
    task = None
    if classifier.outputs is not None:
        for each in (train, validation, test):
            if isinstance(each, ImageBatches):  # All labels must fit.
                task_of(classifier.outputs, each.split.labels)
        task = task_of(classifier.outputs, labels)
    weights = None
    if class_weight is not None:
        classes = max(model.output_shape[-1], 2)
        weights = weights_by_label(class_weight, batches.class_names, classes)
        kind = task and task.kind
        check(kind != "regression", "`class_weight` must be None for regression.", class_weight)
        if kind == "multi-label":
            rule = "`class_weight` must be None for several labels per image and a compiled loss."
            check("loss" not in classifier.compiled, rule, class_weight)
        else:
            train = map_batches(train, functools.partial(weigh, np.array(weights, "float32")))
            weights = None
    return TrainingData(
        recipe, train, validation, test, steps, task, batches.class_names, weights, held_out
    )


def weights_by_label(
    weights: Mapping[Any, float], class_names: Sequence[str] | None, classes: int
) -> tuple[float, ...]:
    """Return the weight of each label, from weights by label or name; others weigh 1."""
    label_of = {name: label for label, name in enumerate(class_names or ())}
    by_label = {label_of.get(key, key): float(weight) for key, weight in weights.items()}
    unknown = by_label.keys() - set(range(classes))
    rule = f"`class_weight` must have labels in 0..{classes - 1} or names of classes as keys."
    check(not unknown, rule, next(iter(unknown), None))
    return tuple(by_label.get(label, 1.0) for label in range(classes))


def own_batches(source: Any) -> data.Pipelines | None:
    """Return own batches, also (train, validation[, test]); None for a source to load.

    Raises a ValueError for an iterator, which can be read only once.
    """
    rule = "`source` must not be an iterator, which ends after one epoch: pass a `PyDataset`."
    check(not isinstance(source, Iterator), rule, type(source).__name__)
    if isinstance(source, data.Pipelines):
        return source
    several = isinstance(source, (tuple, list)) and len(source) in (2, 3)
    if several and all(map(is_batches, source)):
        train, validation, test, *_ = *source, None
        return data.Pipelines(train, validation, test=test)
    if not is_batches(source):
        return None
    names = getattr(source, "class_names", None)  # As Keras's from directories have them.
    return data.Pipelines(source, class_names=names and names_of(names))


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to load."""
    sources = (str, os.PathLike, tuple, list, np.ndarray, data.Dataset)
    is_tensor = keras.ops.is_tensor(source)
    return isinstance(source, Iterable) and not isinstance(source, sources) and not is_tensor


def are_numbers(class_names: Sequence[str]) -> bool:
    """Return whether the names are those of unnamed classes: "0", "1", ..."""
    return list(class_names) == [str(i) for i in range(len(class_names))]


def with_weights(batches: Any) -> Any:
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
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names."""
    is_single, batches = is_batches(source), own_batches(source)
    rule = "`crop_ratio` must be None for cropped batches."
    check(crop_ratio is None or batches is None, rule, crop_ratio)
    if is_single:
        check(split is None, "`split` must be None for your own batches.", split)
        return "batches", source, batches.class_names
    opened = data.load_dataset(source, validation_split=0) if batches is None else batches
    splits = [n for n in ("test", "validation", "train") if getattr(opened, n) is not None]
    check(split in (None, *splits), f"`split` must be one of {', '.join(splits)}.", split)
    split = split or splits[0]
    found = getattr(opened, split)
    if batches is None:
        inputs, strict = ModelInput.of(model), opened.strict
        if crop_ratio is not None:
            preprocessing = inputs.preprocessing.replace(crop_ratio=crop_ratio)
            inputs = replace(inputs, preprocessing=preprocessing)
        found = ImageBatches(Loader(found, inputs, batch_size, strict=strict), pixels)
    return split, with_weights(found), opened.class_names
