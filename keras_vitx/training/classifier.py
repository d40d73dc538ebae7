"""What training reads of a model, once."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_vitx.checks import check
from keras_vitx.keras_internals import compile_arguments, sublayers
from keras_vitx.outputs import (
    Outputs,
    class_names_of,
    describe,
    head_of,
    is_chain,
    outputs_of,
)
from keras_vitx.training.optimizer import OPTIMIZER

OF_TASKS = ("accuracy", "top_5_accuracy", "binary_accuracy", "mean_absolute_error")
"""Names of the metrics that `Task` gives."""


@dataclass(frozen=True)
class Classifier:
    """A model with what training needs to know of it and of the models inside it.

    Attributes:
        model: The model.
        compiled: What the user passed to `model.compile`, without what an earlier `fit` did.
        outputs: The kind and number of the outputs; None with a loss of the user's own.
        class_names: The class names of the model, or of a model that it ends in; None without.
        takes_pixels: Whether `fit` may give it pixels, as a `Chain` whose `train_step` is ours.
        heads: The Dense layers with one output per class: one, or several in `DistilledHead`.
    """

    model: keras.Model
    compiled: dict[str, Any]
    outputs: Outputs | None
    class_names: tuple[str, ...] | None
    takes_pixels: bool
    heads: tuple[keras.layers.Dense, ...]

    @classmethod
    def of(cls, model: keras.Model) -> "Classifier":
        """Read a model; a ValueError if it is no classifier and has no loss of the user's own."""
        compiled = _by_user(model)
        shape = getattr(model, "output_shape", None) if "loss" in compiled else ()
        rule = "`model` must be functional, with one output: train any other by `model.fit`."
        check(isinstance(shape, tuple), rule, describe(model))
        outputs = None if "loss" in compiled else outputs_of(model)
        takes_pixels = is_chain(model) and model.takes_pixels
        return cls(model, compiled, outputs, class_names_of(model), takes_pixels, _heads(model))


def _by_user(model):
    compiled = {k: v for k, v in compile_arguments(model).items() if v is not None}
    if is_chain(model) and model.compiles_blocks:
        compiled["jit_compile"] = True
    if (optimizer := compiled.get("optimizer")) is not None:
        # Keras's default, that is without an argument; the loss of any recipe has this name.
        default = keras.optimizers.RMSprop(name=optimizer.name).get_config()
        if optimizer.name == OPTIMIZER or optimizer.get_config() == default:
            del compiled["optimizer"]
    if getattr(compiled.get("loss"), "name", None) == OPTIMIZER:
        del compiled["loss"]
        metrics = keras.tree.flatten(compiled.get("metrics"))
        if all(getattr(metric, "name", None) in OF_TASKS for metric in metrics):
            compiled.pop("metrics", None)  # The same, for the labels of this time.
    return compiled


def _heads(model):
    """Return the Dense layers with one output per class in the last layer before an activation."""
    dense = [part for part in sublayers(head_of(model)) if isinstance(part, keras.layers.Dense)]
    return tuple(layer for layer in dense if layer.units == model.output_shape[-1])
