"""Compile a model for `fit`: the user's choices take precedence over the recipe's."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vitx.classifier import outputs_of
from keras_vitx.keras_internals import compile_arguments
from keras_vitx.training.evaluate import Measured
from keras_vitx.training.optimizer import OPTIMIZER, make_optimizer
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.targets.distillation import Distillation
from keras_vitx.training.targets.losses import PerHead
from keras_vitx.training.task import task_of

log = logging.getLogger(__name__)


def compiled_by_user(model: keras.Model) -> bool:
    """Return whether the user compiled the model, rather than an earlier call of our `fit`."""
    optimizer = getattr(model, "optimizer", None)
    # In mixed_float16, Keras wraps the optimizer.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return bool(model.compiled) and getattr(optimizer, "name", None) != OPTIMIZER


def compile_for(
    model: keras.Model,
    recipe: Recipe,
    steps: int,
    labels: Callable[[], Any],
    optimizer: str | keras.optimizers.Optimizer | None = None,
    loss: Any = None,
    metrics: Sequence[Any] | None = None,
    distillation: Distillation | None = None,
) -> Measured:
    """Compile `model` and return the `Measured` for validation, without label smoothing.

    The optimizer, the loss and the metrics are each taken from the arguments; if None,
    from the user's `compile`; otherwise they follow from the recipe, the head and the labels.

    Args:
        model: The model. It is left as compiled if the user has set all three.
        recipe: Settings of the optimizer, and the label smoothing.
        steps: Steps per epoch.
        labels: A function that returns the labels of a batch; called if there is no loss.
        optimizer, loss, metrics: As in `fit`.
        distillation: The distillation, if any, which adds the teacher's part to the loss.

    Raises:
        ValueError: as in `outputs_of` and `task_of`.
    """
    own = compile_arguments(model) if compiled_by_user(model) else {}
    if own:
        log.warning(
            "The model is compiled: its optimizer (%s), loss and metrics are used, not the "
            "recipe's.",
            type(model.optimizer).__name__,
        )
    given = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = {name: value for name, value in own.items() if value is not None} | given
    plain_loss = chosen.get("loss")
    if plain_loss is None:
        task = task_of(outputs_of(model), labels())
        plain_loss, given["loss"] = task.loss(), task.loss(recipe.targets.label_smoothing)
        if "metrics" not in chosen:
            given["metrics"] = task.metrics()
    if distillation is not None and not isinstance(plain_loss, PerHead):
        given["loss"] = distillation.loss(model, given.get("loss", plain_loss))
    if "optimizer" not in chosen:
        given["optimizer"] = make_optimizer(model, recipe, steps)
    if given:
        model.compile(**{**chosen, **given})
    measures = [chosen.get("metrics", given.get("metrics")), chosen.get("weighted_metrics")]
    return Measured(model, plain_loss, [m for m in keras.tree.flatten(measures) if m is not None])
