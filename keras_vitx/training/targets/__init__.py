"""The targets of a recipe: what `fit` adds to the labels of the training batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vitx.data import Pipelines
from keras_vitx.training.batches import are_numbers, is_batches
from keras_vitx.training.recipe import Targets
from keras_vitx.training.targets.distillation import Distillation
from keras_vitx.training.targets.mix_token import MixToken
from keras_vitx.training.targets.token_labels import TokenLabels


def distillation_of(targets: Targets, teacher: keras.Model | None) -> Distillation | None:
    """Return the distillation from a teacher; `"hard"` if the recipe names no kind.

    Raises:
        ValueError: if the recipe distils and there is no teacher.
    """
    if teacher is not None:
        kind = targets.distillation or "hard"
        return Distillation(teacher, kind, targets.temperature, targets.distillation_weight)
    if targets.distillation is not None:
        raise ValueError(
            f"`teacher` must be a model for a recipe with distillation={targets.distillation!r}. "
            "Received: None. Give distillation=None to train on the labels alone."
        )
    return None


def token_labels_of(labels: Any, model: keras.Model, source: Any) -> TokenLabels | None:
    """Return the labels of the patches, which `data.pipelines` takes as `targets`.

    Args:
        labels: A `TokenLabels`, or the labels that it takes; or None.
        model: The model that is trained.
        source: The source of the images.

    Raises:
        ValueError: as in `TokenLabels`, or if the source is batches.
    """
    if labels is None:
        return None
    if isinstance(source, Pipelines) or is_batches(source):
        raise ValueError(
            "`token_labels` must be None for batches of your own: they follow the augmentation. "
            "Give `targets=TokenLabels(...)` to `data.pipelines`, or batches with labels "
            "{'head': ..., 'aux_head': ...}."
        )
    return labels if isinstance(labels, TokenLabels) else TokenLabels(labels, model)


def with_targets(
    batches: Pipelines,
    model: keras.Model,
    targets: Targets,
    distillation: Distillation | None,
    class_weight: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Pipelines:
    """Return the batches with the teacher's targets and the boxes of MixToken.

    Raises:
        ValueError: if the teacher does not fit the model or the data, an image has no token
            labels, or classes are weighted.
    """
    train, token_labels = batches.train, getattr(batches.train, "targets", None)
    if isinstance(token_labels, TokenLabels):
        split = train.split
        token_labels.check(split.id(index) for index in range(split.size))
    if distillation is not None:
        _check_names(distillation.teacher, batches.class_names)
        train = distillation.batches(train, model)
    if targets.mix_token:
        train = MixToken(train, model, seed=seed)
    if class_weight is not None and (token_labels or train is not batches.train):
        raise ValueError(
            "`class_weight` must be None where there are several labels per image, by a teacher, "
            "token labels or MixToken. Give batches (images, labels, weights)."
        )
    return batches._replace(train=train)


def _check_names(teacher: keras.Model, names: Sequence[str] | None) -> None:
    """Check that teacher and data have the same classes, if both have names for them."""
    known = getattr(teacher, "class_names", None)
    if names is None or known is None or are_numbers(names) or are_numbers(known):
        return
    if tuple(known) != tuple(names):
        raise ValueError(
            "`teacher` must have the classes of the data, in the same order, "
            f"({', '.join(names[:5])}, ...). Received: ({', '.join(known[:5])}, ...)."
        )
