"""The callbacks of a training: what `fit` stops at, validates, prints and keeps."""

import contextlib
import datetime
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.files import atomic_write, write_csv
from keras_vitx.provenance import digest_of
from keras_vitx.text import shortened
from keras_vitx.training.devices import is_chief, single_process
from keras_vitx.training.resume import (
    assign_values,
    copied_values,
    random_states,
    set_random_states,
)

log = logging.getLogger(__name__)


class StopAtNonFinite(keras.callbacks.Callback):
    """Stop training at the first step whose loss is NaN or infinite.

    Args:
        batches: The training batches. If they have `ids(epoch, index)`, the error names the images
            of that step.

    Raises:
        FloatingPointError: at the end of the epoch, which is cut short at that step. The message
            names step and epoch; the attribute `images` has the ids of the images: indices in the
            source, or paths.
    """

    # Keras may call it from another thread, so that steps don't wait for their losses.
    async_safe = True

    def __init__(self, batches: Any = None):
        super().__init__()
        self.batches, self.step = batches, None

    def on_train_batch_end(self, batch, logs=None):
        # Keras logs the running mean of the epoch, which stays NaN.
        if not np.isfinite(logs["loss"]):
            self.step = batch + 1 if self.step is None else min(self.step, batch + 1)
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.step is None:
            return
        # With `steps_per_execution`, Keras tells the loss of several steps.
        together = self.model.steps_per_execution
        first = (self.step - 1) // together * together + 1
        steps = f"step {self.step}" if first == self.step else f"steps {first} to {self.step}"
        message = f"The loss is {logs['loss']} at {steps} of epoch {epoch + 1}."
        images = []
        if hasattr(self.batches, "ids"):
            ids = [i for s in range(first - 1, self.step) for i in self.batches.ids(epoch, s)]
            images = [int(i) if isinstance(i, (int, np.integer)) else str(i) for i in ids]
            message += f" Its images: {shortened(map(str, images), 8)}."
        error = FloatingPointError(message)
        error.images = images
        raise error


class Validate(keras.callbacks.Callback):
    """Add `val_` entries to the logs of each epoch.

    If the optimizer keeps a moving average of the weights, it is the average that is evaluated.
    Random numbers drawn in validation don't affect training.

    Args:
        measure: A function that returns the loss and the metrics by name.
    """

    def __init__(self, measure: Callable[[], dict[str, float]]):
        super().__init__()
        self.measure = measure

    def on_epoch_end(self, epoch, logs=None):
        states = random_states()
        try:
            with ema_weights(self.model):
                logs.update({f"val_{name}": value for name, value in self.measure().items()})
        finally:
            set_random_states(states)


class Throughput(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, updated after validation, with images per second and remaining time.

    `row` has the last learning rate of an epoch, and the seconds and speed of its training.
    """

    async_safe = True  # As in `StopAtNonFinite`.

    def __init__(self, batch_size: int):
        super().__init__()
        self.batch_size = batch_size
        self.seconds_before = 0.0
        self.row: dict[str, float] = {}
        self.first_epoch: tuple[int, float] | None = None

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self.start = self.now = time.perf_counter()
        self.steps, self.first_step = 0, None
        self.first_epoch = first, start = self.first_epoch or (epoch, self.start)
        if self.verbose and epoch > first:
            seconds = (self.start - start) / (epoch - first) * (self.epochs - epoch)
            print(f"{datetime.timedelta(seconds=round(seconds))} left", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        self.now = time.perf_counter()
        self.steps = max(self.steps, batch + 1)
        # The first step, which compiles, is not counted.
        self.first_step = first, start = self.first_step or (batch + 1, self.now)
        rate = (self.steps - first) * self.batch_size / max(self.now - start, 1e-9)
        super().on_train_batch_end(batch, {**(logs or {}), "images/s": rate})

    def on_epoch_end(self, epoch, logs=None):
        seconds = self.get_state()["seconds"]
        rate = round(self.steps * self.batch_size / max(seconds, 1e-9), 1)
        self.row = {
            "learning_rate": _last_learning_rate(self.model),
            "seconds": round(seconds, 3),
            "images_per_second": rate,
        }
        self.seconds_before, self.start = 0.0, self.now
        super().on_epoch_end(epoch, {**(logs or {}), "images/s": rate})

    def get_state(self) -> dict[str, Any]:
        return {"seconds": self.seconds_before + self.now - self.start}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seconds_before = state["seconds"]


class BestCheckpoint(keras.callbacks.Callback):
    """Keep the weights of the best epoch, and write the files of a run after each epoch.

    The best epoch has the highest `val_accuracy`, then the lowest `val_loss`; without accuracy, the
    lowest `val_loss`; without validation, it is the last one. Ties go to the earlier epoch. If the
    optimizer keeps a moving average of the weights, the average is kept.

    Args:
        model: The model. Its initial weights are kept until the first epoch ends.
        output: Directory for `best.keras` (or `last.keras`) and `history.csv`, which the chief
            process writes atomically; created if necessary. None to write nothing.
        result: `"best"` keeps the best epoch, `"last"` the last one.
        throughput: A callback before this one, whose `row` is added to the history.
        patience: Epochs without improvement after which training ends; None for no early stopping.
        record: What the `training_record` of a `Chain` says beside the best epoch and its metrics.

    Attributes:
        epoch: The best epoch, counted from 1; None before the first one ends.
        logs: The logs of that epoch.

    Raises:
        FloatingPointError: at the end of an epoch, if the validation loss or the weights are not
            finite.
    """

    def __init__(
        self,
        model: keras.Model,
        output: str | os.PathLike | None = None,
        result: Literal["best", "last"] = "best",
        throughput: Throughput | None = None,
        patience: int | None = None,
        record: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.set_model(model)
        self.output = Path(output) if output is not None and is_chief() else None
        self.result, self.throughput, self.patience = result, throughput, patience
        self.record = record
        self.epoch: int | None = None
        self.logs: dict[str, float] = {}
        self.values = copied_values(self._variables())
        self.rows: list[dict[str, float]] = []

    @property
    def monitor(self) -> str | None:
        """The log entry that decides; None without validation, or with `result="last"`."""
        if self.result == "last":
            return None
        return next((key for key in ("val_accuracy", "val_loss") if key in self.logs), None)

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: float(value) for name, value in (logs or {}).items()}
        row = self.throughput.row if self.throughput else {}
        self.rows.append({"epoch": epoch + 1, **logs, **row})
        if self.output is not None:
            write_csv(self.rows, self.output / "history.csv")
        with ema_weights(self.model):
            if not np.isfinite(logs.get("val_loss", 0.0)):
                raise FloatingPointError(f"The validation loss of epoch {epoch + 1} is not finite.")
            values = (keras.ops.convert_to_numpy(variable.value) for variable in self._variables())
            if not all(np.isfinite(value).all() for value in values):
                raise FloatingPointError(f"The weights after epoch {epoch + 1} are not finite.")
            if self._is_best(logs):
                self.epoch, self.logs = epoch + 1, logs
                self.values = copied_values(self._variables())
                if self.output is not None:
                    self._tell_model()
                    path = self.output / f"{self.result}.keras"
                    with atomic_write(path) as temporary, single_process():
                        self.model.save(temporary)
        if self.patience is not None and epoch + 1 - self.epoch >= self.patience:
            log.info("Training ends, as no epoch was better than epoch %d.", self.epoch)
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        # Before the callbacks of the user, whose weights stay if they restore any.
        log.info(self.restore())

    def restore(self) -> str:
        """Restore the best or else the initial weights, and return a sentence that says which."""
        assign_values(self._variables(), self.values)
        if self.epoch is not None:
            self._tell_model()
        else:
            return "The model has its weights from before training: no epoch was finished."
        value = f" ({self.monitor} {self.logs[self.monitor]:.4g})" if self.monitor else ""
        return f"The model has the weights of epoch {self.epoch}{value}."

    def _tell_model(self):
        if self.record is not None and hasattr(self.model, "training_record"):
            summary = {name: self.summary()[name] for name in ("best_epoch", "validation")}
            record = {**self.record, **summary, "weights": digest_of(self.model)}
            self.model.training_record = record

    def summary(self) -> dict[str, Any]:
        """Return the best epoch and its metrics, for the record of a run."""
        metrics = {k.removeprefix("val_"): v for k, v in self.logs.items() if k.startswith("val_")}
        return {
            "epochs_finished": len(self.rows),
            "best_epoch": self.epoch,
            "monitor": self.monitor,
            "validation": metrics or None,
        }

    def get_state(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("epoch", "logs", "values", "rows", "record")}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _variables(self):
        # All that training changes, since a failed step of JAX leaves all of them empty.
        return [*self.model.trainable_variables, *self.model.non_trainable_variables]

    def _is_best(self, logs):
        key = self.monitor
        if key == "val_accuracy" and logs[key] != self.logs[key]:
            return logs[key] > self.logs[key]
        return key is None or logs["val_loss"] < self.logs["val_loss"]


def verbosity(verbose: str | int) -> int:
    """Return Keras's `verbose` as a number: one line per epoch in a pipe, 0 except in the chief."""
    if not is_chief():
        return 0
    if verbose != "auto":
        return int(verbose)
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2


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


def optimizer_of(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return the optimizer of a model, without Keras's wrapper for mixed_float16."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


@contextlib.contextmanager
def ema_weights(model: keras.Model) -> Iterator[None]:
    """Set the weights of `model` to their moving average in this context, if there is one.

    In a `Chain`, the statistics of batch normalization are averaged too. In a file saved within,
    weights and optimizer state are both the average, so training may continue from it; Keras's
    `SwapEMAWeights` would exchange them.
    """
    optimizer = optimizer_of(model)
    if not getattr(optimizer, "use_ema", False) or not optimizer.built:
        yield
        return
    variables = [*model.trainable_variables, *getattr(optimizer, "statistics", tuple)()]
    values = copied_values(variables)
    try:
        optimizer.finalize_variable_values(model.trainable_variables)
        # Under JAX, a variable and its average now share an array, which the next step donates.
        assign_values(variables, copied_values(variables))
        yield
    finally:
        assign_values(variables, values)


def _last_learning_rate(model):
    optimizer = optimizer_of(model)
    rate = optimizer.get_config()["learning_rate"]
    if isinstance(rate, dict):
        # After an update, `optimizer.learning_rate` is that of the next one.
        updates = keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(optimizer.iterations))
        step = int(updates) * (optimizer.gradient_accumulation_steps or 1) - 1
        with contextlib.suppress(TypeError, ValueError):  # An unregistered schedule.
            schedule = keras.optimizers.schedules.deserialize(rate)
            return float(keras.ops.convert_to_numpy(schedule(max(step, 0))))
        rate = optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(rate))
