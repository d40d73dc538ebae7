"""Compile a model for `fit`: what the user compiled takes precedence over the recipe."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import compile_arguments
from keras_vitx.losses import PerHead
from keras_vitx.outputs import outputs_of, task_of
from keras_vitx.text import nearest
from keras_vitx.training.distillation import Distillation
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.optimizer import OPTIMIZER, make_optimizer, optimizer_of
from keras_vitx.training.recipe import Recipe

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
    """Compile `model`, and return an `Evaluator` for validation, without label smoothing."""
    arguments = compile_arguments(model) if compiled_by_user(model) else {}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if arguments:
        text = "The model is compiled: its optimizer (%s), loss and metrics replace the recipe's."
        log.warning(text, type(model.optimizer).__name__)
    changes: dict[str, Any] = {}
    loss = arguments.get("loss")
    if loss is None:
        task = task_of(outputs_of(model), labels())
        loss, changes["loss"] = task.loss(), task.loss(recipe.label_smoothing)
        if "metrics" not in arguments:
            changes["metrics"] = task.metrics()
    if distillation is not None and not isinstance(loss, PerHead):
        changes["loss"] = distillation.loss(model, changes.get("loss", loss))
    if "optimizer" not in arguments:
        changes["optimizer"] = make_optimizer(model, recipe, steps)
    arguments |= changes
    if changes:
        model.compile(**arguments)
    metrics = keras.tree.flatten([arguments.get("metrics"), arguments.get("weighted_metrics")])
    return Evaluator(model, loss, [metric for metric in metrics if metric is not None])


def check_callbacks(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raise a ValueError for a callback that sets the rate of an optimizer with a schedule."""
    setters = keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler
    names = [type(callback).__name__ for callback in callbacks if isinstance(callback, setters)]
    if names and isinstance(optimizer_of(model).get_config()["learning_rate"], dict):
        raise ValueError(
            f"`callbacks` must not set the learning rate, which follows the recipe's schedule. "
            f"Received: {names[0]}. Compile the model with an optimizer of a constant rate first, "
            "such as `model.compile(keras.optimizers.AdamW(1e-4))`."
        )


def class_weights(
    weights: Mapping[Any, float] | None, class_names: Sequence[str] | None, classes: int
) -> dict[int, float] | None:
    """Return class weights by label, from weights by label or name."""
    if weights is None:
        return None
    labels = range(max(classes, 2))
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
