"""A training run: its directory, its lock, its record, and the callbacks that write it."""

import contextlib
import datetime
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from filelock import FileLock, Timeout

from keras_vitx.data import Pipelines
from keras_vitx.drawing import Picture, drawing
from keras_vitx.files import atomic_write, write_csv
from keras_vitx.provenance import digest_of
from keras_vitx.training.devices import in_use, is_chief, single_process
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import (
    assign_values,
    checkpoints_in,
    copied_values,
    random_states,
    set_random_states,
)

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
HELD_OUT = "held_out.txt"
# Columns of a history that are not plotted.
NOT_PLOTTED = ("epoch", "seconds", "images_per_second")


class RunRecord(keras.callbacks.Callback):
    """The record of a training run in its directory, and a context that locks the directory.

    `run.json` is written when training begins and when it ends, also on an error, after which the
    model has its best weights. Without `output`, nothing is written.
    """

    best: "BestCheckpoint"

    def __init__(self, output: str | os.PathLike | None, resume: bool = False, source: Any = None):
        super().__init__()
        self.source = path_of(source)
        self.directory = None if output is None else Path(output)
        self.checkpoints = self.directory and self.directory / CHECKPOINTS
        self.writes = self.directory is not None and is_chief()
        self.record: dict[str, Any] = {}
        self.start: float | None = None
        if self.writes:
            self._check_directory(resume)

    def _check_directory(self, resume):
        files = ("run.json", "history.csv", "best.keras", "last.keras", CHECKPOINTS)
        existing = {name for name in files if (self.directory / name).exists()}
        if existing and not resume:
            raise ValueError(
                "`output` must be a directory without a run, which `resume=True` would continue. "
                f"Received: {self.directory}."
            )
        if existing - {"run.json"} and CHECKPOINTS not in existing:
            raise ValueError(
                "`output` must hold a run with checkpoints, or none, with `resume`. Received: "
                f"{self.directory}, a run without."
            )

    def __enter__(self):
        if self.writes:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.directory / ".lock")
            try:
                self.lock.acquire(timeout=0)
            except Timeout as error:
                raise ValueError(
                    "`output` must not be in use by another process. Received: "
                    f"{self.directory}. Wait for that run to end, or pass another directory."
                ) from error
        return self

    def describe(
        self, batches: Pipelines, model: keras.Model, recipe: Recipe, **record: Any
    ) -> None:
        """Set the contents of `run.json` and `held_out.txt`."""
        self.record = record | {
            "model": model.name,
            "source": self.source,
            "recipe": recipe.to_dict(),
            "devices": in_use().count,
            "backend": keras.backend.backend(),
            "keras": keras.__version__,
            "train_images": batches.train_size,
            "validation_images": batches.validation_size,
            "test_images": batches.test_size,
        }
        split = getattr(batches.validation, "split", None)
        self.held_out = [] if split is None else split.names()

    def on_train_begin(self, logs=None):
        self.start = time.perf_counter()
        if self.writes:
            self.record["seconds"] = read_run(self.directory).get("seconds", 0.0)
            self._write()
            if self.held_out:
                with atomic_write(self.directory / HELD_OUT) as path:
                    path.write_text("".join(f"{name}\n" for name in self.held_out), "utf-8")

    def __exit__(self, kind, error, traceback):
        try:
            # An error before training has changed nothing.
            if error is not None and self.start is not None:
                self._handle(error)
        finally:
            if self.writes:
                if self.start is not None:
                    self._write_results()
                with contextlib.suppress(OSError):  # Windows can't remove an open file.
                    (self.directory / ".lock").unlink()
                self.lock.release()

    def _handle(self, error):
        """Restore the best weights; log or raise which they are, and how to continue."""
        message = self.best.restore()
        self.record["stopped"] = f"{type(error).__name__}: {error}"
        files = checkpoints_in(self.checkpoints) if self.directory else []
        if files:
            message += f" `resume=True` continues from {files[-1]}."
        if not isinstance(error, FloatingPointError):
            log.warning("%s stopped the training. %s", type(error).__name__, message)
            return
        self.record["images"] = getattr(error, "images", [])
        images = "look at these images, and " if self.record["images"] else ""
        raise FloatingPointError(
            f"{error} {message} Next, {images}try a lower `learning_rate`, `clip_norm=1.0`, or "
            "`precision='float32'`."
        ) from error

    def _write_results(self):
        """Write the results; a full disk is only logged, so that it doesn't hide another error."""
        seconds = self.record["seconds"] + time.perf_counter() - self.start
        self.record |= {**self.best.summary(), "seconds": round(seconds, 1)}
        try:
            self._write()
            if self.best.rows and importlib.util.find_spec("matplotlib"):
                draw_curves(self.best.rows, self.directory / "curves.png")
        except OSError as error:
            log.warning("run.json and curves.png can't be written: %s", error)

    def _write(self):
        with atomic_write(self.directory / "run.json") as path:
            path.write_text(json.dumps(self.record, indent=2) + "\n")


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
            more = ", ..." if len(images) > 8 else ""
            message += f" Its images: {', '.join(map(str, images[:8]))}{more}."
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


def draw_curves(rows: Sequence[Mapping[str, float]], path: str | os.PathLike) -> Picture:
    """Plot the columns of a `history.csv` by epoch, each with its `val_` column."""
    columns = dict.fromkeys(key for row in rows for key in row)
    names = list(dict.fromkeys(c.removeprefix("val_") for c in columns if c not in NOT_PLOTTED))
    names.sort(key=lambda name: name == "learning_rate")
    with drawing(path, (1, max(1, len(names)))) as (axes,):
        for axis, name in zip(axes, names, strict=False):
            for column, label in ((name, "training"), (f"val_{name}", "validation")):
                points = [(row["epoch"], row[column]) for row in rows if column in row]
                if points:
                    axis.plot(*zip(*points, strict=True), ".-", label=label)
            axis.set_title(name.replace("_", " "))
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            if f"val_{name}" in columns:
                axis.legend()
    return Picture(path)


def path_of(source: Any) -> str | None:
    """Return the absolute path of a source that is a file or a directory; None for others."""
    source = getattr(source, "name", source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else None


def name_of(source: Any) -> str | None:
    """Return the name of a source without the directories that it lies in; None for arrays."""
    source = getattr(source, "name", source)
    if not isinstance(source, (str, os.PathLike)):
        return None
    return Path(source).name if path_of(source) else str(source)


def read_run(directory: Path) -> dict[str, Any]:
    """Return the contents of `run.json`, or an empty dictionary if there is no such file."""
    path = directory / "run.json"
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}).") from error


def is_finished(directory: Path) -> bool:
    """Return whether the directory holds a finished run."""
    return bool(read_run(directory).get("finished"))


def held_out(run: str | os.PathLike) -> list[str]:
    """Return the images that a run held out: file names relative to the source, or array indices.

    ```python
    kv.evaluate(model, "photos", validation_split=kv.training.held_out("runs/photos"))
    ```

    Args:
        run: The directory of the run.

    Raises:
        OSError: if the run has no list of them.
    """
    return (Path(run) / HELD_OUT).read_text("utf-8").splitlines()


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
