"""The batches of training and evaluation: of a data set, or the user's own."""

import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.data.batches import EvaluationBatches
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shortened
from keras_vitx.training.devices import check_batch, in_use
from keras_vitx.training.recipe import Recipe

log = logging.getLogger(__name__)
SplitName = Literal["train", "validation", "test"]


def load_batches(
    source: Any,
    model: keras.Model,
    recipe: Recipe,
    fixed: Collection[str] = (),
    *,
    seed: int = 0,
    targets: Any = None,
    **arguments: Any,
) -> tuple[Recipe, data.Pipelines]:
    """Return the recipe adapted to the number of images of a source, and the batches.

    Settings in `fixed` are not adapted; the user's own batches are returned unchanged.
    """
    _check_repeats(source)
    if isinstance(source, data.Pipelines) or is_batches(source):
        batches = _user_batches(source, recipe, arguments)
    else:
        if not isinstance(source, data.Dataset):
            names = arguments.keys() & {"validation_split", "strict"}
            source = data.load_dataset(source, seed=seed, **{n: arguments[n] for n in names})
        recipe = recipe.for_images(round(source.train.size * arguments.get("fraction", 1.0)), fixed)
        batches = data.pipelines(
            source,
            model,
            recipe.part_of_batch,
            augmentation=recipe.augmentation,
            mixing=recipe.mixing,
            targets=targets,
            seed=seed,
            pad=in_use().replicas > 1,
            **arguments,
        )
        # `pipelines` raises an error for more classes than outputs.
        names, outputs = batches.class_names or (), model.output_shape[-1]
        if names and len(names) < outputs and not are_numbers(names):
            raise ValueError(
                f"`model` must have an output per class. Received: {outputs} for {len(names)} "
                f"classes ({shortened(names)}). Create the model with classes={len(names)}."
            )
    size = len(labels_of(batches.train))
    check_batch(size, in_use())
    size *= recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate follows the actual batch size.
        recipe = recipe.replace(batch_size=size)
    epochs, steps = recipe.all_epochs, recipe.steps_per_epoch or steps_of(batches.train)
    updates = epochs * steps // recipe.accumulate_steps
    text = "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g."
    log.info(text, updates, epochs, steps, size, recipe.peak)
    return recipe, batches


def _user_batches(source, recipe, arguments):
    for name, value in arguments.items():
        if name != "validation_split" and value not in (None, 1.0, False, 0):
            raise ValueError(
                f"`{name}` must not be set with batches, which are used whole. Received: {value!r}."
            )
    if isinstance(source, data.Pipelines):
        batches = source
    else:
        batches = data.Pipelines(source)
        if recipe.mixing is not None:
            log.warning("Your own batches are used without the recipe's augmentation and mixing.")
    images = keras.tree.flatten(first_of(batches.train))[0]
    largest = np.abs(keras.ops.convert_to_numpy(images)).max()
    if largest > 50:
        log.warning(
            "The images of your batches reach %.0f: they look like pixels in 0..255, but are used "
            "unchanged. Preprocess them with `keras_vitx.preprocess_input(images, model)`.",
            largest,
        )
    return batches


def evaluation_split(
    source: Any,
    model: keras.Model,
    split: SplitName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    **arguments: Any,
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names."""
    _check_repeats(source)
    if crop_ratio is not None and (is_batches(source) or isinstance(source, data.Pipelines)):
        raise ValueError(
            f"`crop_ratio` must be None for cropped batches. Received: {crop_ratio!r}."
        )
    if is_batches(source):
        if split is not None:
            raise ValueError(f"`split` must be None for your own batches. Received: {split!r}.")
        return "batches", source, None
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
        batches = EvaluationBatches(batches, spec, batch_size, in_use().replicas > 1, strict=strict)
    return split, batches, source.class_names


def _check_repeats(source: Any) -> None:
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
    return isinstance(source, Iterable) and not isinstance(source, others)


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
    return np.asarray(batch[1]["head"] if isinstance(batch[1], dict) else batch[1])


def steps_of(batches: Any) -> int:
    """Return the number of batches per epoch; a ValueError if it is unknown."""
    try:
        steps = getattr(batches, "num_batches", None) or len(batches)
    except TypeError:
        steps = None
    if steps in (None, sys.maxsize):  # The length of endless Grain datasets.
        raise ValueError(
            "`steps_per_epoch` must be set for batches whose number is unknown or endless. "
            f"Received: None, with a {type(batches).__name__}."
        )
    return steps
