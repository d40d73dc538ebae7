"""Keras's `fit`, which can be killed at any time and resumed bit for bit."""

import contextlib
import errno
import functools
import json
import logging
import os
import random
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vitx.backend import restore_variables
from keras_vitx.checks import PositiveInt, check_argument
from keras_vitx.files import atomic_write, remove_stale
from keras_vitx.keras_internals import build_training
from keras_vitx.training.batches import BatchRange, first_of, steps_of
from keras_vitx.training.devices import all_reduce_max, in_use, is_chief
from keras_vitx.training.devices.replicas import Replicate, shard_of

log = logging.getLogger(__name__)

# Steps between exchanges of signals, after which all processes end at the same step.
AGREE_EVERY = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# In configs of Keras objects: numbered names, and what depends on the backend.
NOT_COMPARED = {"name", "module", "registered_name", "build_config"}
NOT_COMPARED |= {"inbound_nodes", "input_layers", "output_layers"}
# Settings that may differ when a finished training is extended.
EXTENDED = {"schedule", "learning_rate"}


def resumable_fit(
    model: keras.Model,
    batches: Any,
    *,
    epochs: int,
    directory: str | os.PathLike | None,
    save_every: int | None = None,
    keep: int = 3,
    resume: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    steps_per_epoch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    verbose: str | int = "auto",
    config: Mapping[str, Any] | None = None,
) -> keras.callbacks.History:
    """Train a compiled model as `model.fit` does, and save all that the next step depends on.

    A training that was killed continues with `resume=True`, also within an epoch. On the same
    backend the numbers are the same, bit for bit, if batches depend on their epoch and index only,
    as those of `keras_vitx.data`, and GPU kernels are deterministic. A finished training continues
    if `epochs` is larger.

    Callbacks are resumed if they have `get_state()`, which returns JSON values and arrays, and
    `set_state(state)`; others start over. On SIGTERM or Ctrl-C, the step is finished and the state
    saved; then `SystemExit` with code 143, or `KeyboardInterrupt`, is raised.

    Args:
        model: A compiled model.
        batches: Batches (inputs, targets) or (inputs, targets, weights): a `keras.utils.PyDataset`,
            or another iterable as for `fit`. `set_epoch`, if they have it, is called with the
            epoch. With several devices, pass whole batches, the same in every process.
        epochs: Number of the last epoch, counted from 1.
        directory: Directory of the checkpoints, `step-*.safetensors`; None to save nothing.
        save_every: Steps between checkpoints; None for one per epoch.
        keep: Number of checkpoints to keep.
        resume: Whether to continue from the last checkpoint in `directory`, if there is one.
        callbacks: As in `fit`. Steps are counted from the start of the epoch, also when resumed.
        steps_per_epoch, class_weight, verbose: As in `fit`.
        config: JSON values that must be the same when training is resumed, such as the settings of
            a recipe.

    Returns:
        The history of all epochs.

    Raises:
        ValueError: if `directory` has checkpoints and `resume` is false, or if the model, the
            optimizer, the loss, the number of steps, `class_weight` or `config` differ from those
            of the checkpoint; the message lists the differences.
        OSError: if a checkpoint can't be written or read.
    """
    check_argument("save_every", save_every, PositiveInt | None)
    check_argument("keep", keep, PositiveInt)
    callbacks = [*callbacks, Replicate()]
    if hasattr(batches, "set_epoch"):
        set_epoch = keras.callbacks.LambdaCallback(lambda epoch, logs: batches.set_epoch(epoch))
        callbacks.insert(0, set_epoch)
        is_sequential = getattr(batches, "is_sequential", False)
        if steps_per_epoch and not is_sequential and steps_per_epoch < len(batches):
            # These are shuffled anew in each epoch, so every epoch can use the first ones.
            batches, steps_per_epoch = BatchRange(batches, 0, steps_per_epoch), None
    settings = {"shuffle": False, "verbose": verbose, "class_weight": class_weight}
    if directory is None:
        settings |= {"steps_per_epoch": steps_per_epoch, "callbacks": callbacks}
        return model.fit(shard_of(batches), epochs=epochs, **settings)

    directory = Path(directory)
    if checkpoints_in(directory) and not resume:
        raise ValueError(
            "`directory` must be without checkpoints, from which `resume=True` would continue. "
            f"Received: {directory}."
        )
    steps = steps_per_epoch or steps_of(batches)
    batch = keras.tree.map_structure(keras.ops.convert_to_numpy, tuple(first_of(batches)))
    build_training(model, batch)
    config = facts_of(model, {**(config or {}), "steps": steps, "class_weight": class_weight})
    state = state_to_continue(model, directory, config, epochs)
    if is_chief():
        remove_stale_files(directory)
    all_reduce_max(0)  # No process writes a checkpoint before all have read theirs.
    saving = _SavingCallbacks(
        directory, save_every, keep, config, state, callbacks, add_history=True,
        add_progbar=verbose != 0, model=model, verbose=verbose, epochs=epochs, steps=steps,
    )  # fmt: skip
    epoch, step = (state["epoch"], state["step"]) if state else (0, 0)
    model.stop_training = False
    with saving.signals():
        saving.begin()
        while epoch < epochs and not model.stop_training:
            # The rest of an epoch is a separate call of `fit`.
            saving.first_step, last_epoch = step, epoch + 1 if step else epochs
            # With `steps_per_epoch`, an epoch continues with the batches after those of the last.
            start, count = (epoch * steps + step, None) if steps_per_epoch else (step, steps - step)
            rest = BatchRange(batches, start, count) if start else batches
            settings |= {"steps_per_epoch": steps_per_epoch and steps - step, "callbacks": saving}
            model.fit(shard_of(rest), initial_epoch=epoch, epochs=last_epoch, **settings)
            if last_epoch < epochs and not model.stop_training:
                # `fit` replaces the weights by their moving average when it ends.
                assign_values(variables_of(model), saving.arrays_at_epoch_end)
            epoch, step = last_epoch, 0
        saving.end()
    return model.history


class _SavingCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a training in up to two calls of `fit`, which saves its state between steps.

    The first call completes an epoch, from `first_step` on. The state is saved and restored at the
    beginning of a step, when the callbacks have finished the previous step and the iterator has
    drawn its random numbers. The chief process writes; every process restores.
    """

    epoch = first_step = signal = agreed_signal = 0
    saved: int | None = None
    last_logs: Mapping[str, float] | None = None
    arrays_at_epoch_end: list[np.ndarray]

    def __init__(self, directory, every, keep, config, state, callbacks, **params):
        super().__init__(callbacks, **params)
        self.directory, self.every, self.keep = directory, every, keep
        self.config, self.state = config, state
        self.stateful = {type(c).__name__: c for c in callbacks if hasattr(c, "get_state")}

    def begin(self):
        super().on_train_begin()
        if self.state is not None:
            self.model.history.epoch = self.state["history"]["epoch"]
            self.model.history.history = self.state["history"]["logs"]
            for name in self.stateful.keys() & self.state["callbacks"].keys():
                self.stateful[name].set_state(self.state["callbacks"][name])

    def end(self):
        super().on_train_end(self.last_logs)

    # Called by each `fit`; callbacks hear of one training, by `begin` and `end`.
    def on_train_begin(self, logs=None): ...

    def on_train_end(self, logs=None): ...

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        super().on_epoch_begin(epoch, logs)

    # Called by the main thread, even where Keras calls `on_train_batch_end` from other threads.
    def on_train_batch_begin(self, batch, logs=None):
        batch += self.first_step
        step = self.epoch * self.params["steps"] + batch
        if in_use().processes == 1 or step % AGREE_EVERY == 0:
            self.agreed_signal = all_reduce_max(self.signal)
        if self.state is not None:
            assign_values(variables_of(self.model), self.state["arrays"])
            set_random_states(self.state["random"])
            self.state, self.saved = None, step
        is_due = batch == 0 if self.every is None else step >= (self.saved or 0) + self.every
        if self.saved is None or (self.saved != step and (is_due or self.agreed_signal)):
            self.save(self.epoch, batch)
        self.raise_on_signal()
        super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self.first_step, logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.last_logs = logs
        if epoch == self.params["epochs"] - 1 or self.model.stop_training:
            self.save(epoch + 1, 0, finished=True)
            self.agreed_signal = all_reduce_max(self.signal)
            self.raise_on_signal()
        if self.first_step:
            self.arrays_at_epoch_end = copied_values(variables_of(self.model))

    def save(self, epoch: int, batch: int, finished: bool = False) -> None:
        """Write the state before step `batch` of an epoch, both from 0, if it is finite."""
        step = epoch * self.params["steps"] + batch
        arrays = copied_values(variables_of(self.model))
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind not in "iub"):
            log.warning("The state before step %d is not finite, and is not saved.", step + 1)
            return
        state = {
            "facts": self.config,  # The name in files.
            "backend": keras.backend.backend(),
            "epochs": self.params["epochs"],
            "epoch": epoch,
            "step": batch,
            "finished": finished,
            "arrays": arrays,
            "random": random_states(),
            "history": {"epoch": self.model.history.epoch, "logs": self.model.history.history},
            "callbacks": {name: callback.get_state() for name, callback in self.stateful.items()},
        }
        if is_chief():
            write_state(self.directory, step, state, self.keep)
        self.saved = step

    def raise_on_signal(self):
        if number := self.agreed_signal:
            files = checkpoints_in(self.directory)
            log.warning("The state is saved in %s.", files[-1] if files else "no file")
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Defer the first SIGTERM or Ctrl-C to the end of the step; a second one acts at once."""
        handlers = {}
        # Only the main thread can set handlers. None stands for a handler that isn't Python's.
        if threading.current_thread() is threading.main_thread():
            handlers = {n: signal.getsignal(n) or signal.SIG_DFL for n in SIGNALS}

        def restore():
            for number, handler in handlers.items():
                signal.signal(number, handler)

        def handle(number, frame):
            self.signal = number
            restore()
            name = signal.Signals(number).name
            log.warning("%s: training ends after this step; repeat it to end at once.", name)

        try:
            for number in handlers:
                signal.signal(number, handle)
            yield
        finally:
            restore()


def checkpoints_in(directory: str | os.PathLike) -> list[Path]:
    """Return the checkpoints in a directory, oldest first."""
    return sorted(Path(directory).glob("step-*.safetensors"))


def write_state(
    directory: str | os.PathLike, step: int, state: Mapping[str, Any], keep: int = 3
) -> Path:
    """Write the state after `step` steps as safetensors, and remove all but the last `keep`."""
    path = Path(directory) / f"step-{step:09d}.safetensors"
    arrays: dict[str, np.ndarray] = {}

    def name_of(array: np.ndarray | np.generic) -> Any:
        if isinstance(array, np.generic):
            return array.item()
        name = str(len(arrays))
        # `ascontiguousarray` adds an axis to scalars.
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return {"array": name}

    text = json.dumps(state, default=name_of)
    try:
        with atomic_write(path) as temporary:
            save_file(arrays, temporary, {"state": text})
            # safetensors creates files that only their owner can read, whatever the umask.
            temporary.chmod(temporary.parent.stat().st_mode & 0o666)
            # On the disk before the rename, or a power failure could leave an empty file.
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        raise OSError(
            getattr(error, "errno", None) or errno.EIO,
            f"The checkpoint of step {step} can't be written to {directory} ({error}). Earlier "
            "ones are unchanged.",
        ) from error
    for old in checkpoints_in(directory)[:-keep]:
        old.unlink()
    return path


def read_state(path: str | os.PathLike) -> dict[str, Any]:
    """Return the state in a file of `write_state`."""
    with safe_open(path, "numpy") as file:
        read = functools.cache(file.get_tensor)  # Once, however often it is named.

        def array_of(value: dict[str, Any]) -> Any:
            return read(value["array"]) if value.keys() == {"array"} else value

        return json.loads(file.metadata()["state"], object_hook=array_of)


def read_last_state(directory: str | os.PathLike) -> dict[str, Any] | None:
    """Return the last readable state in a directory; None if there are no files."""
    files = checkpoints_in(directory)
    for path in reversed(files):
        try:
            return read_state(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            log.warning("%s can't be read (%s); the previous one is used.", path, error)
    if files:
        raise OSError(f"No checkpoint in {directory} can be read.")
    return None


def state_to_continue(
    model: keras.Model, directory: Path, config: Mapping[str, Any], epochs: int
) -> dict[str, Any] | None:
    """Return the last state, restored in the model; None if there is none.

    Raises a ValueError that lists what differs if it is the state of another training.
    """
    state = read_last_state(directory)
    if state is None:
        return None
    extends = state["finished"] and epochs > state["epochs"]
    ignored = NOT_COMPARED | EXTENDED if extends else NOT_COMPARED
    if found := list(differences(state["facts"], config, ignored)):
        raise ValueError(
            f"The training can't be resumed, as it is another one: {'; '.join(found[:6])}. "
            "Use another directory for a new one; a finished one can continue with more epochs."
        )
    assign_values(variables_of(model), state["arrays"])
    if state["backend"] != keras.backend.backend():
        text = "The training on %s continues on %s, but not bit for bit."
        log.warning(text, state["backend"], keras.backend.backend())
    if (state["finished"] and not extends) or state["epoch"] >= epochs:
        state["epoch"] = epochs  # Also after early stopping.
        log.info("The training in %s is finished; its result is loaded.", directory)
    else:
        epoch, step = state["epoch"] + 1, state["step"] + 1
        log.info("The training in %s continues with step %d of epoch %d.", directory, step, epoch)
    return state


def remove_stale_files(directory: Path) -> None:
    """Remove partial files of a killed process: checkpoints, and files of their run."""
    for path in directory.glob(".unfinished-*-*"):
        remove_stale(directory / path.name.removeprefix(".unfinished-").rpartition("-")[0])
    for name in ("best.keras", "last.keras", "history.csv", "run.json"):
        remove_stale(directory.parent / name)


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """Return all that training changes in a compiled model, with its values between two steps."""
    restore_variables(model)
    weights = [*model.trainable_variables, *model.non_trainable_variables]
    return [*weights, *model.optimizer.variables, *model.metrics_variables]


def copied_values(variables: Iterable[keras.Variable]) -> list[np.ndarray]:
    """Return copies of the values of variables."""
    # Copies, as `convert_to_numpy` shares the variable's memory under PyTorch. Via a tensor, as
    # the value of a variable on several devices may be None.
    to_numpy, to_tensor = keras.ops.convert_to_numpy, keras.ops.convert_to_tensor
    return [np.array(to_numpy(to_tensor(variable))) for variable in variables]


def assign_values(variables: Iterable[keras.Variable], values: Iterable[np.ndarray]) -> None:
    """Assign one value to each variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def random_states() -> dict[str, Any]:
    """Return the states of `random`, `numpy.random` and, under PyTorch, its generators."""
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    if keras.backend.backend() == "torch":
        import torch

        states["torch"] = torch.get_rng_state().numpy()
        states["cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore the states of `random_states`, those of PyTorch only under PyTorch."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(states["numpy"]))
    if keras.backend.backend() == "torch" and "torch" in states:
        import torch

        torch.set_rng_state(torch.from_numpy(states["torch"]))
        for gpu, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.from_numpy(state), gpu)


def facts_of(model: keras.Model, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that must not change in a training, as JSON values, its structure included."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    facts = dict(config)
    for name, value in (("model", model), ("optimizer", optimizer), ("loss", model.loss)):
        serialized = keras.saving.serialize_keras_object(value)
        facts[name] = serialized["config"] if isinstance(serialized, dict) else serialized
    # The width of integers depends on the backend.
    facts["variables"] = [
        [[*variable.shape], "int" if "int" in str(variable.dtype) else str(variable.dtype)]
        for variable in variables_of(model)
    ]
    return json.loads(json.dumps(facts))


def differences(before: Any, now: Any, ignored: Collection[str], name: str = "") -> Iterator[str]:
    """Yield how JSON values differ, but for the keys `ignored` and those in only one of them."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() & now.keys() - set(ignored):
            yield from differences(before[key], now[key], ignored, f"{name}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, ignored, f"{name}[{index}]")
    elif before != now:
        yield f"{name} was {_short(before)}, is now {_short(now)}"


def _short(value):
    if isinstance(value, dict):
        return "{...}"
    return f"[{len(value)} values]" if isinstance(value, list) else f"{value!s:.60}"
