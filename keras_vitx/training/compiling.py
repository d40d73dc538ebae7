"""Compile a model for `fit`: what the user compiled takes precedence over the recipe."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_vitx.classifier import outputs_of
from keras_vitx.keras_internals import compile_arguments
from keras_vitx.losses import PerHead
from keras_vitx.text import nearest
from keras_vitx.training.distillation import Distillation
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.optimizer import OPTIMIZER, make_optimizer, optimizer_of
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.task import task_of

log = logging.getLogger(__name__)


def compiled_by_user(model: keras.Model) -> bool:
    """Return whether the user compiled the model, rather than an earlier call of our `fit`."""
    return bool(model.compiled) and getattr(optimizer_of(model), "name", None) != OPTIMIZER


def compile_for(
    model: keras.Model,
    recipe: Recipe,
    steps: int,
    labels: Callable[[], Any],
    distillation: Distillation | None = None,
) -> Evaluator:
    """Compile `model`, and return the `Evaluator` for validation, without label smoothing."""
    own = compile_arguments(model) if compiled_by_user(model) else {}
    own = {name: value for name, value in own.items() if value is not None}
    if own:
        log.warning(
            "The model is compiled: its optimizer (%s), loss and metrics are used, not the "
            "recipe's.",
            type(model.optimizer).__name__,
        )
    ours: dict[str, Any] = {}
    loss = own.get("loss")
    if loss is None:
        task = task_of(outputs_of(model), labels())
        loss, ours["loss"] = task.loss(), task.loss(recipe.label_smoothing)
        if "metrics" not in own:
            ours["metrics"] = task.metrics()
    if distillation is not None and not isinstance(loss, PerHead):
        ours["loss"] = distillation.loss(model, ours.get("loss", loss))
    if "optimizer" not in own:
        ours["optimizer"] = make_optimizer(model, recipe, steps)
    if ours:
        model.compile(**{**own, **ours})
    measures = [own.get("metrics", ours.get("metrics")), own.get("weighted_metrics")]
    return Evaluator(model, loss, [m for m in keras.tree.flatten(measures) if m is not None])


def check_callbacks(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raise a ValueError for a callback that sets the rate of an optimizer with a schedule."""
    setters = keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler
    wrong = [type(callback).__name__ for callback in callbacks if isinstance(callback, setters)]
    if wrong and isinstance(optimizer_of(model).get_config()["learning_rate"], dict):
        raise ValueError(
            f"`callbacks` must not set the learning rate, which follows the recipe's schedule. "
            f"Received: {wrong[0]}. Compile the model with an optimizer of a constant rate first, "
            "such as `model.compile(keras.optimizers.AdamW(1e-4))`."
        )


def class_weights(
    weights: Mapping[Any, float] | None, class_names: Sequence[str] | None, classes: int
) -> dict[int, float] | None:
    """Return class weights by label, from those by label or name; others weigh 1."""
    if weights is None:
        return None
    labels = range(max(classes, 2))
    names = {name: label for label, name in enumerate(class_names or ())}
    found = {}
    for key, weight in weights.items():
        label = names.get(key, key)
        if isinstance(label, bool) or label not in labels:
            raise ValueError(
                f"`class_weight` must have labels or names of classes as keys. Received: {key!r}. "
                f"{nearest(str(key), list(names) or [f'0..{labels[-1]}'])}"
            )
        found[int(label)] = float(weight)
    return found
