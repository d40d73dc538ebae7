"""The data of a training or an evaluation, opened once and checked: sources, or own batches."""

import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.backend import checked_dataset
from keras_vitx.checks import check
from keras_vitx.data.loading import EvaluationBatches
from keras_vitx.data.sources.dataset import ArrayImages
from keras_vitx.outputs import Task, class_names_of, outputs_of, task_of
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import nearest, shortened
from keras_vitx.training.batches import BatchRange, first_of, is_endless, length_of, steps_of
from keras_vitx.training.devices import check_batch, in_use
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.targets import Distillation

log = logging.getLogger(__name__)
SplitName = Literal["train", "validation", "test"]


class TrainingData(NamedTuple):
    """What the steps of `fit` need to know of the data.

    Attributes:
        recipe: The recipe, adapted to the number of images.
        batches: The batches of all splits; those of training have all their targets.
        steps: Number of training batches per epoch.
        labels: The labels of the first training batch.
        task: The task of the model, which all labels fit; None if it has its own loss.
        distillation: The teacher of the training batches, or None.
        class_weight: Weight in the loss by label, or None.
    """

    recipe: Recipe
    batches: data.Pipelines
    steps: int
    labels: np.ndarray
    task: Task | None
    distillation: Distillation | None
    class_weight: dict[int, float] | None


def open_data(
    source: Any,
    model: keras.Model,
    recipe: Recipe,
    fixed: Collection[str] = (),
    *,
    own_loss: bool = False,
    teacher: keras.Model | None = None,
    class_weight: Mapping[Any, float] | None = None,
    seed: int = 0,
    **arguments: Any,
) -> TrainingData:
    """Open a source of `fit` for a model; settings in `fixed` are not adapted to it.

    `arguments` are those of `data.pipelines`. Your own batches stay as they are. With `own_loss`,
    the model was compiled with a loss, and its labels may be anything.
    """
    distillation = _distillation(recipe, teacher)
    options = {"validation_split": 0.1, "fraction": 1.0}
    options = {name: arguments.pop(name, default) for name, default in options.items()}
    batches = source = opened(source, seed=seed, **options)
    if isinstance(source, data.Pipelines):
        _check_batches(batches, recipe, {**options, **arguments})
        check_range(batches.train, model)
    else:
        check(source.train is not None, "`source` must have training images.", source.name)
        recipe = recipe.for_images(source.train.size, fixed)
        inputs, classes = inputs_of(model, recipe.crop_ratio), model.output_shape[-1]
        batches = data.pipelines(
            source,
            SimpleNamespace(**vars(inputs), output_shape=model.output_shape),
            recipe.part_of_batch,
            augmentation=recipe.augmentation,
            mixing=recipe.mixing,
            seed=seed,
            pad=in_use().replicas > 1,
            **arguments,
        )
        # `pipelines` raises an error for more classes than outputs.
        names = batches.class_names or ()
        if names and len(names) < classes and not are_numbers(names):
            raise ValueError(
                f"`model` must have an output per class. Received: {classes} for {len(names)} "
                f"classes ({shortened(names)}). Create the model with classes={len(names)}."
            )
    class_weight = _class_weight(class_weight, batches.class_names, model)
    batches = _with_targets(batches.map(weighted), model, distillation, class_weight)
    labels = labels_of(batches.train)
    check_batch(len(labels), in_use())
    size = len(labels) * recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate follows the actual batch size.
        recipe = recipe.replace(batch_size=size)
    steps = steps_of(batches.train, recipe.steps_per_epoch)
    task = None if own_loss else task_of(outputs_of(model), labels)
    if task is not None:
        batches = batches.map(lambda split: checked(split, task))
    updates = recipe.all_epochs * steps // recipe.accumulate_steps
    text = "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g."
    log.info(text, updates, recipe.all_epochs, steps, size, recipe.peak)
    return TrainingData(recipe, batches, steps, labels, task, distillation, class_weight)


def evaluation_split(
    source: Any,
    model: keras.Model,
    split: SplitName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    **arguments: Any,
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names."""
    is_single, source = is_batches(source), opened(source, **arguments)
    if crop_ratio is not None and isinstance(source, data.Pipelines):
        raise ValueError(
            f"`crop_ratio` must be None for cropped batches. Received: {crop_ratio!r}."
        )
    if is_single:
        if split is not None:
            raise ValueError(f"`split` must be None for your own batches. Received: {split!r}.")
        _check_ends(source.train)
        check_range(source.train, model)
        return "batches", source.train, source.class_names
    splits = [n for n in ("test", "validation", "train") if getattr(source, n) is not None]
    if split is not None and split not in splits:
        raise ValueError(f"`split` must be one of {', '.join(splits)}. Received: {split!r}.")
    split = split or splits[0]
    batches = getattr(source, split)
    if isinstance(source, data.Dataset):
        inputs, pad = inputs_of(model, crop_ratio), in_use().replicas > 1
        batches = EvaluationBatches(batches, inputs, batch_size, pad=pad, strict=source.strict)
    else:
        check_range(batches, model)
    return split, weighted(batches), source.class_names


def inputs_of(model: keras.Model, crop_ratio: float | None = None) -> ModelInput:
    """Return the images that a model takes, at another crop ratio unless it is None."""
    inputs = ModelInput.of(model)
    if crop_ratio is None:
        return inputs
    return replace(inputs, preprocessing=inputs.preprocessing.replace(crop_ratio=crop_ratio))


def _distillation(recipe: Recipe, teacher: keras.Model | None) -> Distillation | None:
    """Return the distillation from a teacher: `"hard"` unless the recipe sets a kind."""
    if teacher is not None:
        kind = recipe.distillation or "hard"
        return Distillation(teacher, kind, recipe.temperature, recipe.distillation_weight)
    if recipe.distillation is not None:
        raise ValueError(
            f"`teacher` must be a model for a recipe with distillation={recipe.distillation!r}. "
            "Received: None. Set distillation=None to train on the labels alone."
        )
    return None


def _check_batches(batches: data.Pipelines, recipe: Recipe, arguments: Mapping[str, Any]) -> None:
    """Check own batches, which are used unchanged, and the arguments that would change them."""
    for name, value in arguments.items():
        if name != "validation_split" and value not in (None, 1.0, False, 0):
            raise ValueError(
                f"`{name}` must not be set with batches, which are used whole. Received: {value!r}."
            )
    if recipe.mixing is not None and not hasattr(batches.train, "split"):
        log.warning("Your own batches are used without the recipe's augmentation and mixing.")


def check_range(batches: Any, model: Any) -> None:
    """Log a warning if the images of own batches are not in the range that the model states."""
    if hasattr(batches, "split"):
        return
    try:
        taken = ModelInput.of(model, any_size=True).preprocessing
    except ValueError:
        return
    images = keras.ops.convert_to_numpy(keras.tree.flatten(first_of(batches))[0])
    low, high = float(images.min()), float(images.max())
    mean, std = np.array((taken.mean, taken.std))
    lowest, highest = np.min((0 - mean) / std), np.max((1 - mean) / std)
    is_outside = max(lowest - low, high - highest) > (highest - lowest) / 2  # Noise goes beyond.
    # Normalized images are below 0 where they are darker than the mean.
    is_scaled = 0 < high <= 10 if taken.takes_pixels else 0 < high <= 1 and low >= 0 > lowest
    if is_outside or is_scaled:
        looks = ", they look like pixels in 0..255" if low >= 0 and high > 50 else ""
        log.warning(
            f"The images of your batches are in {low:.3g}..{high:.3g}{looks}. They are used "
            f"unchanged, but the model takes {lowest:.3g}..{highest:.3g}. Prepare pixels in 0..255 "
            "with `keras_vitx.preprocess_input(images, model)`, and with nothing else."
        )


def _class_weight(
    weights: Mapping[Any, float] | None, class_names: Sequence[str] | None, model: keras.Model
) -> dict[int, float] | None:
    """Return class weights by label, from weights by label or name."""
    if weights is None:
        return None
    is_mapping = isinstance(weights, Mapping)
    check(is_mapping, "`class_weight` must map labels or names of classes to numbers.", weights)
    labels = range(max(model.output_shape[-1], 2))
    label_of = {name: label for label, name in enumerate(class_names or ())}
    by_label = {}
    for key, weight in weights.items():
        label = label_of.get(key, key)
        if isinstance(label, bool) or label not in labels:
            raise ValueError(
                f"`class_weight` must have labels or names of classes as keys. Received: {key!r}. "
                f"{nearest(str(key), list(label_of) or [f'0..{labels[-1]}'])}"
            )
        by_label[int(label)] = float(weight)
    return by_label


def _with_targets(
    batches: data.Pipelines,
    model: keras.Model,
    distillation: Distillation | None,
    class_weight: Mapping[int, float] | None,
) -> data.Pipelines:
    """Return batches with a teacher's targets, if there is one."""
    train = batches.train
    if distillation is not None:
        known = (batches.class_names, class_names_of(model), class_names_of(distillation.teacher))
        of_data, of_model, teacher_names = (
            None if are_numbers(names or ()) else names for names in known
        )
        names = of_data or of_model
        if names and teacher_names and teacher_names != tuple(names):
            raise ValueError(
                "`teacher` must have the classes of the data, or the model, in the same order, "
                f"({', '.join(names[:5])}, ...). Received: ({', '.join(teacher_names[:5])}, ...)."
            )
        train = distillation.batches(train, model)
    if class_weight is not None and train is not batches.train:
        raise ValueError(
            f"`class_weight` must be None with a teacher's labels. Received: {class_weight}. Pass "
            "batches (images, labels, weights) instead."
        )
    return batches._replace(train=train)


def fingerprint(batches: data.Pipelines) -> dict[str, Any]:
    """Return a digest of each split: its labels, and names and sizes of files, or all pixels."""
    splits = {}
    for name in ("train", "validation"):
        split = getattr(getattr(batches, name), "split", None)
        if split is None:
            continue
        digest = hashlib.sha256(np.ascontiguousarray(split.labels).tobytes())
        if isinstance(split.images, ArrayImages):
            for image in split.images:
                digest.update(np.ascontiguousarray(image))
        else:
            for image in map(split.id, range(split.size)):
                digest.update(os.fsencode(Path(str(image)).name))
                # An image may vanish during training, which continues without it.
                if isinstance(image, os.PathLike) and os.path.exists(image):
                    digest.update(b"%d" % os.path.getsize(image))
        splits[name] = {"images": split.size, "pixels": digest.hexdigest()[:16]}
    return splits


def opened(source: Any, **arguments: Any) -> data.Dataset | data.Pipelines:
    """Return own batches, also (train, validation[, test]), as `Pipelines`, or load a source.

    `arguments` are those of `load_dataset`. Raises a ValueError for an iterator, which can be read
    only once.
    """
    if isinstance(source, Iterator):
        raise ValueError(
            "`source` must not be an iterator, which ends after one epoch. Received: "
            f"{type(source).__name__}. Pass a `PyDataset`, a `DataLoader` or arrays, for example."
        )
    several = isinstance(source, (tuple, list)) and len(source) in (2, 3)
    if is_batches(source) or (several and all(map(is_batches, source))):
        train, validation, test, *_ = *(source if several else [source]), None, None
        _check_ends(validation, test)
        names = getattr(train, "class_names", None)  # As Keras's from directories have them.
        names = None if names is None else tuple(map(str, names))
        return data.Pipelines(train, validation, names, test=test)
    if isinstance(source, data.Pipelines):
        return source
    return data.load_dataset(source, **arguments)


def _check_ends(*splits: Any) -> None:
    for batches in splits:
        what = "`source` must have batches that end for an evaluation, without `.repeat()`."
        check(not is_endless(batches), what, type(batches).__name__)


def is_batches(source: Any) -> bool:
    """Return whether `source` yields batches, rather than being a source to load."""
    if isinstance(source, keras.utils.PyDataset):
        return True
    others = (str, os.PathLike, tuple, list, dict, data.Dataset, Iterator)
    # An array or tensor; a DataFrame, or a data set of Hugging Face.
    is_data = hasattr(source, "dtype") or hasattr(source, "to_csv")
    return isinstance(source, Iterable) and not isinstance(source, others) and not is_data


def are_numbers(class_names: Sequence[str]) -> bool:
    """Return whether the names are those of unnamed classes: "0", "1", ..."""
    return list(class_names) == [str(i) for i in range(len(class_names))]


def weighted(batches: Any) -> Any:
    """Return evaluation batches of a data set in which what can't be decoded has weight 0."""
    return batches.weighted() if isinstance(batches, EvaluationBatches) else batches


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
    labels = np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])
    check(labels.dtype.kind not in "OSU", "`source` must have numbers as labels.", labels)
    return labels


def checked(batches: Any, task: Task) -> Any:
    """Return batches whose labels all fit `task`; a ValueError if known ones do not.

    Those of your own batches are checked as they come, each before its step.
    """
    split = getattr(batches, "split", None)
    if split is not None:
        task_of(task.outputs, split.labels)
    elif hasattr(batches, "element_spec"):
        return checked_dataset(batches, task.check)
    elif length_of(batches) is not None:
        return BatchRange(batches, check=task.check)
    return batches
