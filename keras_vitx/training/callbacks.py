"""The callbacks of a training: what `fit` stops at, validates and keeps."""

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.files import atomic_write
from keras_vitx.keras_internals import compile_arguments
from keras_vitx.layers.base import optimizer_of
from keras_vitx.training.devices import is_chief, single_process
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.restart import (
    arrays_of,
    assign_values,
    random_states,
    set_random_states,
    variables_of,
)

log = logging.getLogger(__name__)

ACCURACIES = (
    keras.metrics.Accuracy,
    keras.metrics.BinaryAccuracy,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
)


class AverageWeights(keras.callbacks.Callback):
    """Between epochs, give the model the moving average of its weights that the optimizer keeps.

    So later callbacks validate and save the average, with the statistics of normalization averaged
    too in a `Chain`. Without `use_ema`, nothing changes. In a file saved between epochs, training
    may continue from the average; Keras's `SwapEMAWeights` puts the weights in place of it there.
    """

    values: list[np.ndarray] | None = None

    def on_epoch_end(self, epoch, logs=None):
        if optimizer_of(self.model).use_ema:
            variables = variables_of(self.model)
            self.values = arrays_of(variables)
            optimizer_of(self.model).finalize_variable_values(self.model.trainable_variables)
            # Under JAX, a variable and its average now share an array, which the next step donates.
            assign_values(variables, arrays_of(variables))

    def on_epoch_begin(self, epoch, logs=None):
        if self.values is not None:
            assign_values(variables_of(self.model), self.values)

    def get_state(self) -> dict[str, Any]:
        return {"values": self.values}

    def set_state(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


class StopAtNonFinite(keras.callbacks.Callback):
    """Stop training at the first step whose loss is NaN or infinite.

    Unlike Keras's `TerminateOnNaN`, it lets no step wait for the loss of the one before.

    Raises:
        FloatingPointError: at the end of the epoch, which is cut short at that step.
    """

    # Keras may call it from another thread, so that steps don't wait for their losses.
    async_safe = True
    step: int | None = None

    def on_train_batch_end(self, batch, logs=None):
        # Keras logs the running mean of the epoch, which stays NaN.
        if not np.isfinite(logs["loss"]):
            self.step = min(batch + 1, self.step or batch + 1)
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.step is not None:
            raise FloatingPointError(
                f"The loss is {logs['loss']} at step {self.step} of epoch {epoch + 1}: a label "
                "that no class has? Else try a lower `learning_rate`, `clip_norm=1.0`, or "
                "`precision='float32'`."
            )


class Validate(keras.callbacks.Callback):
    """Add `val_` entries to the logs of each epoch; random numbers drawn here change no training.

    Args:
        measure: A function that returns the loss and the metrics by name.
    """

    def __init__(self, measure: Callable[[], dict[str, float]]):
        super().__init__()
        self.measure = measure

    def on_epoch_end(self, epoch, logs=None):
        states = random_states()  # Keras draws numbers where it builds an evaluation.
        logs.update({f"val_{name}": value for name, value in self.measure().items()})
        set_random_states(states)


class BestEpoch(keras.callbacks.Callback):
    """Keep the weights of the best epoch, and restore them when the training ends.

    The best epoch has the highest accuracy in validation, that of the first metric of an accuracy,
    whatever its name, then the lowest `val_loss`; without accuracy, the lowest `val_loss`; without
    validation, or with `result="last"`, it is the last one. Ties go to the earlier epoch.

    Args:
        model: The model. Its initial weights are kept until the first epoch ends.
        path: Path of a `.keras` file, which the chief process writes whole after each epoch that is
            better; None to write none.
        recipe: Its `result` and `patience` count.

    As a context, it restores them after an error, such as Ctrl-C, too.

    Attributes:
        epoch: The best epoch, counted from 1; None before the first one ends.
        logs: The logs of that epoch.

    Raises:
        FloatingPointError: at the end of an epoch, if the validation loss or the weights are not
            finite.
    """

    def __init__(self, model: keras.Model, path: Path | None, recipe: Recipe):
        super().__init__()
        self.set_model(model)
        self.path, self.recipe = path, recipe
        self.epoch: int | None = None
        self.logs: dict[str, float] = {}
        self.values = arrays_of(variables_of(model))

    def on_epoch_end(self, epoch, logs=None):
        values = arrays_of(variables_of(self.model))
        if not all(np.isfinite(number).all() for number in (*values, logs.get("val_loss", 0.0))):
            raise FloatingPointError(
                f"The weights or the validation loss of epoch {epoch + 1} are not finite."
            )
        if self._is_best(logs):
            self.epoch, self.values = epoch + 1, values
            self.logs = {name: float(value) for name, value in logs.items()}
            if self.path is not None and is_chief():
                with atomic_write(self.path) as temporary, single_process():
                    self.model.save(temporary)
        patience = self.recipe.patience
        if patience is not None and epoch + 1 - self.epoch >= patience:
            log.info("Training ends, as no epoch was better than epoch %d.", self.epoch)
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        # Before the callbacks of the user, whose weights stay if they restore any.
        self.restore()

    def __enter__(self) -> "BestEpoch":
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None:
            self.restore()

    def restore(self) -> None:
        """Give the model the weights of the best epoch, or else its initial ones."""
        assign_values(variables_of(self.model), self.values)
        which = "from before training" if self.epoch is None else f"of epoch {self.epoch}"
        log.info("The model has the weights %s.", which)

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "logs": self.logs, "values": self.values}

    def set_state(self, state: dict[str, Any]) -> None:
        self.epoch, self.logs, self.values = state["epoch"], state["logs"], state["values"]

    def _is_best(self, logs):
        if self.epoch is None or self.recipe.result == "last" or "val_loss" not in logs:
            return True
        name = self._accuracy_in(logs)
        accuracy, best = logs.get(name), self.logs.get(name)
        return accuracy > best if accuracy != best else logs["val_loss"] < self.logs["val_loss"]

    def _accuracy_in(self, logs):
        """Return the name in `logs` of the first accuracy: the compiled, or one named so."""
        compiled = keras.tree.flatten(compile_arguments(self.model).get("metrics"))
        names = [f"val_{metric.name}" for metric in compiled if isinstance(metric, ACCURACIES)]
        # Metrics given as text, and those of several outputs, "kind_accuracy".
        names += [name for name in logs if re.fullmatch(r"val_(?!.*top).*acc(uracy)?", name)]
        return next((name for name in names if name in logs), None)


def verbosity(verbose: str | int = "auto") -> str | int:
    """Return `verbose` for Keras; "auto" is a bar in a terminal or notebook, else lines.

    It is 0 except in the chief process, and with `keras.config.disable_interactive_logging()`.
    """
    if not is_chief() or not keras.config.is_interactive_logging_enabled():
        return 0
    if verbose == "auto":
        return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
    return verbose
