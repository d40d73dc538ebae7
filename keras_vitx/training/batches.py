"""Batches for training and evaluation: of a dataset, or the user's own."""

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx import data
from keras_vitx.data.batches import EvaluationBatches
from keras_vitx.preprocessing import ModelInput
from keras_vitx.text import shortened
from keras_vitx.training.devices import in_use
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.wrapped import Wrapped

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
    """Return the batches of a source, and the recipe for as many images as it has.

    The user's own batches are returned unchanged.

    Args:
        source: Any source that `data.pipelines` accepts; `data.Pipelines`; or batches: a
            `keras.utils.PyDataset`, or an iterable that can be iterated repeatedly, such
            as a `tf.data.Dataset` or a PyTorch `DataLoader`.
        model: The model that the images are prepared for.
        recipe: The recipe.
        fixed: Names of settings that the user has chosen, which do not follow the images.
        seed: As in `data.pipelines`.
        targets: As in `data.pipelines`.
        **arguments: Further arguments of `data.pipelines`.

    Raises:
        ValueError: if the number of classes of the source is not that of the model's outputs, or
            one of the arguments is given with the user's own batches.
    """
    _check_repeats(source)
    if isinstance(source, data.Pipelines) or is_batches(source):
        wrong = [name for name, value in arguments.items() if value not in (None, 1.0, False, 0)]
        wrong = [name for name in wrong if name != "validation_split"]
        if wrong:
            raise ValueError(
                f"`{wrong[0]}` must not be given with batches, which are used whole. "
                f"Received: {arguments[wrong[0]]!r}."
            )
        if not isinstance(source, data.Pipelines):
            if recipe.mixing is not None:
                log.warning(
                    "Batches of your own are used as they are, without the augmentation and the "
                    "mixing of the recipe."
                )
            source = data.Pipelines(source)
        _check_range(source.train)
        batches = source
    else:
        if not isinstance(source, data.Dataset):
            names = ("validation_split", "strict")
            options = {name: arguments[name] for name in names if name in arguments}
            source = data.load_dataset(source, seed=seed, **options)
        images = round(source.train.size * arguments.get("fraction", 1.0))
        recipe = recipe.for_images(images, fixed)
        batches = data.pipelines(
            source,
            model,
            recipe.part_of_batch,
            augmentation=recipe.augmentation,
            mixing=recipe.mixing,
            targets=targets,
            seed=seed,
            pad=on_several_devices(),
            **arguments,
        )
        _check_classes(batches.class_names, model.output_shape[-1])
    size = len(labels_of(batches.train)) * recipe.accumulate_steps
    if recipe.base_batch_size and "batch_size" not in fixed:
        # The learning rate is that of the batches that there are.
        recipe = recipe.but(batch_size=size)
    steps = recipe.steps_per_epoch or steps_of(batches.train)
    log.info(
        "%d updates: %d epochs of %d batches, %d images per update, learning rate up to %.2g.",
        recipe.all_epochs * steps // recipe.accumulate_steps,
        recipe.all_epochs,
        steps,
        size,
        recipe.peak,
    )
    return recipe, batches


def _check_repeats(source: Any) -> None:
    if isinstance(source, Iterator):
        raise ValueError(
            f"`source` must not be a generator, which ends after one epoch. Received: a "
            f"{type(source).__name__}. Give a `keras.utils.PyDataset`, a `tf.data.Dataset`, a "
            "`DataLoader`, or arrays."
        )


def _check_classes(names: Sequence[str] | None, outputs: int) -> None:
    if names is None or are_numbers(names) or len(names) == outputs:
        return
    if len(names) != 2 or outputs != 1:
        raise ValueError(
            f"model: it has {outputs} outputs, but the source has {len(names)} classes "
            f"({shortened(names)}). Create the model with classes={len(names)}."
        )


def _check_range(batches: Any) -> None:
    """Log a warning if the first batch looks like pixels that are not normalized."""
    images = keras.tree.flatten(first_of(batches))[0]
    largest = np.abs(keras.ops.convert_to_numpy(images)).max()
    if largest > 50:
        log.warning(
            "The images of your batches reach %.0f: they look like pixels in 0..255, but are used "
            "as they are. Prepare them with `keras_vitx.preprocess_input(images, model)`.",
            largest,
        )


def evaluation_split(
    source: Any,
    model: keras.Model,
    split: SplitName | None,
    batch_size: int,
    crop_ratio: float | None = None,
    **arguments: Any,
) -> tuple[str, Any, tuple[str, ...] | None]:
    """Return the name of a split, its images as batches in fixed order, and the class names.

    Args:
        source: As in `load_batches`.
        model: The model that the images are prepared for.
        split: Name of the split; None is the first of test, validation and train that
            the source has. The user's own batches have no splits.
        batch_size: Images per batch of a source.
        crop_ratio: Replaces that of the model's preprocessing.
        **arguments: Further arguments of `data.load_dataset`.

    Raises:
        ValueError: if the source does not have that split, or batches can't be cropped.
    """
    _check_repeats(source)
    if crop_ratio is not None and (is_batches(source) or isinstance(source, data.Pipelines)):
        raise ValueError(
            f"`crop_ratio` must be None for batches, which are cropped. Received: {crop_ratio!r}."
        )
    if is_batches(source):
        if split is not None:
            raise ValueError(f"`split` must be None for batches of your own. Received: {split!r}.")
        return "batches", source, None
    if not isinstance(source, (data.Dataset, data.Pipelines)):
        source = data.load_dataset(source, **arguments)
    names = ("test", "validation", "train")
    present = [name for name in names if getattr(source, name) is not None]
    if split is not None and split not in present:
        raise ValueError(f"`split` must be one of {', '.join(present)}. Received: {split!r}.")
    split = split or present[0]
    found = getattr(source, split)
    if isinstance(source, data.Dataset):
        model_input = ModelInput.of(model)
        if crop_ratio is not None:
            preprocessing = model_input.preprocessing.but(crop_ratio=crop_ratio)
            model_input = ModelInput(model_input.input_shape, preprocessing)
        found = EvaluationBatches(
            found,
            model_input,
            batch_size,
            on_several_devices(),
            strict=arguments.get("strict", False),
        )
    return split, found, source.class_names


class Perturbed(Wrapped):
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
        if not isinstance(batches, keras.utils.PyDataset) or on_several_devices():
            raise ValueError(
                "`perturb` needs a source or a `keras.utils.PyDataset`, on one device. Received: "
                f"{type(batches).__name__}."
            )
        super().__init__(batches)
        self.perturb, self.order = perturb, order

    def changed(self, images: np.ndarray, labels: Any, index: int) -> tuple[Any, Any]:
        outputs = np.asarray(labels)
        if self.order is not None and outputs.ndim == 1:
            outputs = np.asarray(self.order)[outputs]
        return self.perturb(images, outputs, index), labels


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
    opens = (str, os.PathLike, tuple, list, dict, np.ndarray, data.Dataset, Iterator)
    return isinstance(source, Iterable) and not isinstance(source, opens)


def first_of(batches: Any) -> Any:
    """Return the first batch."""
    return batches[0] if isinstance(batches, keras.utils.PyDataset) else next(iter(batches))


def labels_of(batches: Any) -> np.ndarray:
    """Return the labels of the first batch; with several heads, those of the class token."""
    batch = first_of(batches)
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
        counted = isinstance(batches, keras.utils.PyDataset) and batches.num_batches is not None
        steps = batches.num_batches if counted else len(batches)
    except TypeError as error:
        raise ValueError(
            f"source: the number of batches is unknown ({error}). Give `steps_per_epoch`."
        ) from error
    if steps == sys.maxsize:  # how Grain says it
        raise ValueError("source: the batches are endless. Give `steps_per_epoch`.")
    return steps
