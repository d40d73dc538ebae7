"""`fit` of Keras for long trainings: it can be killed at any moment and continued, bit for bit."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_vitx.data import Pipelines
from keras_vitx.files import atomic_write, remove_stale
from keras_vitx.keras_internals import build_training
from keras_vitx.renamed import renamed_arguments
from keras_vitx.training.batches import first_of, steps_of
from keras_vitx.training.devices import all_reduce_max, in_use, is_chief
from keras_vitx.training.devices.replicas import Replicate, share_of
from keras_vitx.training.optimizer import optimizer_of
from keras_vitx.training.wrapped import Wrapped

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
TERMINATED = 128 + signal.SIGTERM
# Several processes end at the same step: every so many, they ask each other for signals.
AGREE_EVERY = 10
# What differs if a finished training is given more epochs.
EXTENDED = ("recipe.schedule.", "optimizer.learning_rate")


@renamed_arguments(facts="config")
def resumable_fit(
    model: keras.Model,
    batches: Any,
    *,
    epochs: int,
    folder: str | os.PathLike | None,
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

    A training that was killed continues with `resume=True`, on the same backend with the
    same numbers, bit for bit, as if it had not been killed, also in the middle of an
    epoch. That holds for batches that depend on their epoch and index only, as those of
    `keras_vitx.data`, and on a GPU for kernels that are deterministic. A finished training
    continues if `epochs` is larger.

    Keras's own callbacks fall short of it: `BackupAndRestore` and `ModelCheckpoint`
    overwrite a file in place, begin the interrupted epoch anew, and leave out the
    metrics, the random states of the backend and the best weights; `OrbaxCheckpoint`
    needs JAX's Orbax. `CSVLogger`, `TensorBoard` and `SwapEMAWeights` can be given as
    callbacks. A callback continues where it was if it has `get_state()`, which returns
    JSON values and arrays, and `set_state(state)`; others begin anew.

    At SIGTERM and at Ctrl-C, the step is finished and the state saved; then `SystemExit`
    with code 143, or `KeyboardInterrupt`, is raised.

    Args:
        model: A compiled model.
        batches: Batches (inputs, targets) or (inputs, targets, weights): a
            `keras.utils.PyDataset`, or another iterable that `fit` takes.
        epochs: Number of the last epoch, counted from 1.
        folder: Folder of the checkpoints, `step-*.safetensors`; None saves nothing.
        save_every: Steps between two checkpoints; None for one per epoch.
        keep: Number of checkpoints to keep.
        resume: Whether to continue from the last checkpoint in `folder`, if there is one.
        callbacks: As in `fit`. They see the numbers of the whole epoch's steps.
        steps_per_epoch: As in `fit`.
        class_weight: As in `fit`.
        verbose: As in `fit`.
        config: Settings, as JSON values, that a continued training must have in common
            with the one before, such as a recipe.

    Returns:
        The history of all epochs.

    Raises:
        ValueError: if `folder` has checkpoints and `resume` is false, or if the model,
            the optimizer, the loss, the number of steps, `class_weight` or `config` differ from
            those of the checkpoint; the message says in what.
        OSError: if a checkpoint can't be written or read.
    """
    if save_every is not None and save_every < 1:
        raise ValueError(f"`save_every` must be at least 1. Received: {save_every}.")
    checkpoints = None if folder is None else Checkpoints(folder, keep)
    if checkpoints and checkpoints.files and not resume:
        raise ValueError(
            f"{folder} holds the checkpoints of another training. Give `resume=True` to continue "
            "it, or another folder."
        )
    if hasattr(batches, "set_epoch"):
        callbacks = [CountEpochs(batches), *callbacks]
        if steps_per_epoch and steps_per_epoch < len(batches):
            # Such batches are shuffled in each epoch, so each epoch can begin with the first one.
            batches, steps_per_epoch = Window(batches, 0, steps_per_epoch), None
    settings = {"shuffle": False, "verbose": verbose, "class_weight": class_weight}
    if checkpoints is None:
        settings |= {"epochs": epochs, "callbacks": [*callbacks, Replicate()]}
        return model.fit(share_of(batches), steps_per_epoch=steps_per_epoch, **settings)

    steps = steps_per_epoch or steps_of(batches)
    build_training(
        model, keras.tree.map_structure(keras.ops.convert_to_numpy, tuple(first_of(batches)))
    )
    config = {**(config or {}), "steps": steps, "class_weight": class_weight}
    config = json.loads(json.dumps({**config, **_structure_of(model)}))
    state = _state_to_continue(model, checkpoints, config, epochs) if resume else None
    if is_chief():
        checkpoints.remove_stale()
    all_reduce_max(0)  # No process writes a checkpoint before all have read theirs.
    saving = _Saving(
        checkpoints,
        save_every,
        config,
        state,
        [*callbacks, Replicate()],
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
    settings["callbacks"] = saving
    epoch, step = (0, 0) if state is None else (state["epoch"], state["step"])

    def fit_from(epoch: int, step: int, until: int) -> None:
        rest, count = batches, steps_per_epoch
        if steps_per_epoch and epoch * steps + step:
            # With `steps_per_epoch`, the batches go on from one epoch to the next.
            rest, count = Window(batches, epoch * steps + step), steps - step
        elif step:
            rest = Window(batches, step, steps - step)
        model.fit(
            share_of(rest), steps_per_epoch=count, initial_epoch=epoch, epochs=until, **settings
        )

    with saving.signals():
        saving.begin()
        model.stop_training = False
        if step:
            saving.first_step = step
            fit_from(epoch, step, epoch + 1)
            saving.first_step = 0
            epoch += 1
            if epoch < epochs and not model.stop_training:
                # The end of `fit` put the moving average in the place of the weights.
                assign(model, saving.at_epoch_end)
        if epoch < epochs and not model.stop_training:
            fit_from(epoch, 0, epochs)
        saving.end()
    return model.history


def _state_to_continue(model, checkpoints, config, epochs):
    """Return the last state after checking and assigning it, or None if there is none."""
    state = checkpoints.read()
    if state is None:
        return None
    more = bool(state.get("finished")) and epochs > state["epochs"]
    check_same(state["facts"], config, EXTENDED if more else ())
    assign(model, state["arrays"])
    if state.get("finished") and not more:
        state["epoch"] = epochs  # Also if it was stopped early.
    if state["backend"] != keras.backend.backend():
        log.warning(
            "The training began on %s. It continues on %s, but not bit for bit.",
            state["backend"],
            keras.backend.backend(),
        )
    if state["epoch"] >= epochs:
        log.info("The training in %s is finished; its result is loaded.", checkpoints.folder)
    else:
        log.info(
            "The training in %s continues with step %d of epoch %d.",
            checkpoints.folder,
            state["step"] + 1,
            state["epoch"] + 1,
        )
    return state


class Checkpoints:
    """A folder with one file per saved step, of which the last ones are kept.

    A state is a dictionary of JSON values and NumPy arrays, nested as needed. Its file
    is safetensors: the arrays, and the rest as JSON in the metadata.

    Args:
        folder: The folder; created when the first state is written.
        keep: Number of files to keep, at least 1.

    Raises:
        ValueError: if `keep` is below 1.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3):
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: {keep}.")
        self.folder, self.keep = Path(folder), keep

    @property
    def files(self) -> list[Path]:
        """The files, oldest first."""
        return sorted(self.folder.glob(f"step-*{SUFFIX}"))

    def write(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state after `step` steps, then remove files beyond the last `keep`.

        Older files are not touched before the new one is complete.

        Raises:
            OSError: if the disk is full or the folder is not writable; the message names
                the last good checkpoint.
        """
        path = self.folder / f"step-{step:09d}{SUFFIX}"
        arrays: dict[str, np.ndarray] = {}

        def name_of(array: np.ndarray | np.generic) -> Any:
            if isinstance(array, np.generic):
                return array.item()
            name = str(len(arrays))
            # `ascontiguousarray` gives a scalar one axis.
            arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
            return {"array": name}

        text = json.dumps(state, default=name_of)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                save_file(arrays, temporary, {"state": text})
                # safetensors creates files that only their owner can read.
                temporary.chmod(0o644)
                # On the disk before the rename, or a power cut could leave an empty file.
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
        except (OSError, SafetensorError) as error:
            good = self.files
            raise OSError(
                getattr(error, "errno", None) or errno.EIO,
                f"The checkpoint of step {step} can't be written to {self.folder}: "
                f"{getattr(error, 'strerror', None) or error}. "
                + (f"The last good one is {good[-1]}." if good else "There is no earlier one."),
            ) from error
        for old in self.files[: -self.keep]:
            old.unlink()
        return path

    def read(self) -> dict[str, Any] | None:
        """Return the last state, or None if there is none.

        A file that can't be read is skipped, and a warning is logged.

        Raises:
            OSError: if there are files, but none of them can be read.
        """
        files = self.files
        for path in reversed(files):
            try:
                return read_state(path)
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                log.warning("%s can't be read (%s); the one before it is used.", path, error)
        if files:
            raise OSError(f"No checkpoint in {self.folder} can be read.")
        return None

    def remove_stale(self) -> None:
        """Remove the checkpoints and files of the run that a killed process left half written."""
        hidden = [path.name for path in self.folder.glob(".unfinished-*-*")]
        names = {name.removeprefix(".unfinished-").rpartition("-")[0] for name in hidden}
        run = ("best.keras", "last.keras", "history.csv", "run.json")
        for path in (
            *(self.folder / name for name in names),
            *(self.folder.parent / name for name in run),
        ):
            remove_stale(path)


def read_state(path: str | os.PathLike) -> dict[str, Any]:
    """Return the state in a file of `Checkpoints.write`."""
    with safe_open(path, "numpy") as file:

        def array_of(value: dict[str, Any]) -> Any:
            return file.get_tensor(value["array"]) if value.keys() == {"array"} else value

        return json.loads(file.metadata()["state"], object_hook=array_of)


def variables_of(model: keras.Model) -> dict[str, Any]:
    """Return the variables of a training by name: `"weights/0"`, `"optimizer/3"`, ...

    The weights include the states of seed generators; the optimizer's include its step,
    moments, moving average, accumulated gradients and loss scale; the metrics are those
    of the running epoch. By position, because the paths of `get_state_tree` hold names that
    Keras numbers.
    """
    groups = {
        "weights": [*model.trainable_variables, *model.non_trainable_variables],
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return {f"{name}/{i}": v for name, group in groups.items() for i, v in enumerate(group)}


def arrays_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Return copies of the values of `variables_of(model)`, also between two steps of `fit`."""
    # Under JAX, `fit` holds the values outside of the variables.
    getattr(model, "jax_state_sync", lambda: None)()
    # Copies, because under PyTorch `convert_to_numpy` shares the variable's memory. By a tensor,
    # because the value of a variable on several devices may be none.
    return {
        name: np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable)))
        for name, variable in variables_of(model).items()
    }


def assign(model: keras.Model, arrays: Mapping[str, np.ndarray]) -> None:
    """Assign arrays of `arrays_of` to the variables of a model of the same structure."""
    for name, variable in variables_of(model).items():
        variable.assign(arrays[name])


class CountEpochs(keras.callbacks.Callback):
    """Pass the epoch to the batches of `keras_vitx.data`, whose order depends on it.

    Args:
        dataset: Any dataset; one without `set_epoch` is left alone.
    """

    def __init__(self, dataset: Any):
        super().__init__()
        self.dataset = dataset

    def on_epoch_begin(self, epoch, logs=None):
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


class _Saving(keras.callbacks.CallbackList):
    """The callbacks of one training in two calls of `fit`, between whose steps its state is saved.

    The first call trains on the rest of an epoch, from `first_step` on. The callbacks see
    one beginning, one end, and the steps of whole epochs.

    The state is saved, and restored, at the beginning of a step: the callbacks have done their
    work for the step before, and the iterator over the epoch has drawn its random numbers. Of
    several processes, the chief writes, and each restores.

    Args:
        checkpoints: Where the states are written.
        every: Number of steps between two states; None for one per epoch. The states
            before the first step and after the last epoch are always written.
        config: Configuration of the training, written with each state.
        state: The state to restore at the first step; None for a new training.
        callbacks: Those with `get_state` and `set_state` are included in the state.
        **params: As in `keras.callbacks.CallbackList`.
    """

    def __init__(self, checkpoints, every, config, state, callbacks, **params):
        super().__init__(callbacks, **params)
        self.checkpoints, self.every, self.config, self.state = checkpoints, every, config, state
        self.stateful = {
            type(callback).__name__: callback
            for callback in callbacks
            if hasattr(callback, "get_state") and hasattr(callback, "set_state")
        }
        self.epoch = self.first_step = 0
        self.saved: int | None = None
        self.signal = self.asked = 0
        self.alone = in_use().processes == 1
        self.last_logs: Mapping[str, float] | None = None
        self.at_epoch_end: Mapping[str, np.ndarray] = {}

    def begin(self):
        super().on_train_begin()
        if self.state is not None:
            self.model.history.epoch = self.state["history"]["epoch"]
            self.model.history.history = self.state["history"]["logs"]
            for name in self.stateful.keys() & self.state["callbacks"].keys():
                self.stateful[name].set_state(self.state["callbacks"][name])

    def end(self):
        super().on_train_end(self.last_logs)

    def on_train_begin(self, logs=None):
        """Do nothing: `begin` does it."""

    def on_train_end(self, logs=None):
        """Do nothing: `end` does it."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        super().on_epoch_begin(epoch, logs)

    # Called by the main thread, even where Keras calls the ends of steps from other threads.
    def on_train_batch_begin(self, batch, logs=None):
        batch += self.first_step
        step = self.epoch * self.params["steps"] + batch
        if self.alone or step % AGREE_EVERY == 0:
            self.asked = all_reduce_max(self.signal)
        if self.state is not None:
            assign(self.model, self.state["arrays"])
            set_random_states(self.state["random"])
            self.state, self.saved = None, step
        is_due = batch == 0 if self.every is None else step >= (self.saved or 0) + self.every
        if self.saved is None or (self.saved != step and (is_due or self.asked)):
            self.save(self.epoch, batch)
        self._stop_if_asked()
        super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self.first_step, logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.last_logs = logs
        if epoch == self.params["epochs"] - 1 or self.model.stop_training:
            self.save(epoch + 1, 0, finished=True)
            self.asked = all_reduce_max(self.signal)
            self._stop_if_asked()
        if self.first_step:
            self.at_epoch_end = arrays_of(self.model)

    def save(self, epoch: int, batch: int, finished: bool = False) -> None:
        """Write the state before step `batch` of an epoch, both counted from 0.

        A state that is not finite is not written.
        """
        step = epoch * self.params["steps"] + batch
        arrays = arrays_of(self.model)
        if not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind not in "iub"):
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
            self.checkpoints.write(step, state)
        self.saved = step

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let the first SIGTERM or Ctrl-C wait for the end of the step.

        Outside of the main thread, where Python allows no handlers, nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # None stands for a handler that isn't Python's.
        before = {n: signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGINT)}

        def note(number, frame):
            self.signal = number
            for each, handler in before.items():  # The second one acts at once.
                signal.signal(each, handler)
            log.warning(
                "%s: the training ends after this step. Once more: at once.",
                signal.Signals(number).name,
            )

        try:
            for number in before:
                signal.signal(number, note)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop_if_asked(self):
        if self.asked:
            files = self.checkpoints.files
            log.warning("The state is saved in %s.", files[-1] if files else "no file")
            raise KeyboardInterrupt if self.asked == signal.SIGINT else SystemExit(TERMINATED)


def random_states() -> dict[str, Any]:
    """Return the states of the generators outside of the model.

    They are those of `random` and of `numpy.random`; under PyTorch also its own, from which a
    `Dropout` without a seed draws.
    """
    states = {"python": random.getstate(), "numpy": [*np.random.get_state()]}
    if keras.backend.backend() == "torch":
        import torch

        states["torch"] = torch.get_rng_state().numpy()
        states["cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the states that `random_states` returned, those of PyTorch only under PyTorch."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(states["numpy"]))
    if keras.backend.backend() == "torch" and "torch" in states:
        import torch

        torch.set_rng_state(torch.from_numpy(states["torch"]))
        if len(states["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([torch.from_numpy(state) for state in states["cuda"]])
        else:
            log.warning(
                "The training was saved with %d GPUs; its random states do not continue on %d.",
                len(states["cuda"]),
                torch.cuda.device_count(),
            )


class Window(Wrapped):
    """A range of batches, which begin again after the last one.

    Args:
        batches: The batches: a `keras.utils.PyDataset`, whose batch i must not depend on the
            batches before it; or another iterable, of which those before `start` are skipped.
        start: Index of the first batch.
        count: Number of batches; None for as many as `batches` has.
    """

    def __init__(self, batches: Any, start: int = 0, count: int | None = None):
        super().__init__(batches)
        self.start = start
        self.count = super().num_batches if count is None else count
        inside = batches
        while isinstance(inside, Wrapped):
            inside = inside.batches
        if isinstance(inside, keras.utils.PyDataset):
            self.workers, self.use_multiprocessing = batches.workers, batches.use_multiprocessing
            self.max_queue_size = batches.max_queue_size
        elif start:
            log.warning(
                "The first %d batches of the %s are skipped. The training continues bit for bit "
                "only if they come in the same order as before.",
                start,
                type(inside).__name__,
            )
            for _ in range(start % (super().num_batches or sys.maxsize)):
                self._batch(0)

    @property
    def num_batches(self) -> int | None:
        """Number of batches in the window."""
        return self.count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        length = super().num_batches
        index += self.start
        batch = self._batch(index if length is None else index % length)
        return tuple(batch) if isinstance(batch, list) else batch


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], but: Sequence[str] = ()) -> None:
    """Check that the configuration of a training is that of its checkpoint.

    Args:
        before: That of the checkpoint. Values that only one of both has are not compared: an
            earlier version of the package wrote others.
        now: That of this training.
        but: Beginnings of the names of values that may differ.

    Raises:
        ValueError: if they differ; the message has the first differences.
    """
    found = [d for d in _differences(before, now, "") if not d[0].startswith(tuple(but))]
    if found:
        lines = [f"{name} was {_short(a)}, is now {_short(b)}" for name, a, b in found[:6]]
        more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
        raise ValueError(
            f"The training can't be resumed, because it is another one: {'; '.join(lines)}{more}. "
            "Begin a new one in another folder; a finished one can be given more epochs."
        )


def fingerprint(batches: Pipelines) -> dict[str, Any]:
    """Return values that tell two datasets apart, as JSON.

    Of files, they cover the labels, names and sizes; of arrays, the labels and all pixels. They
    are empty for batches that are not of `keras_vitx.data`.
    """
    found = {}
    for name in ("train", "validation"):
        split = getattr(getattr(batches, name), "split", None)
        if split is None:
            continue
        digest = hashlib.sha256(np.ascontiguousarray(split.labels).tobytes())
        if isinstance(split.images, np.ndarray):
            digest.update(np.ascontiguousarray(split.images))
        else:
            for image in map(split.id, range(split.size)):
                digest.update(Path(str(image)).name.encode())
                # An image may vanish during a training, which goes on without it.
                if isinstance(image, os.PathLike) and os.path.exists(image):
                    digest.update(b"%d" % os.path.getsize(image))
        found[name] = {"images": split.size, "pixels": digest.hexdigest()[:16]}
    return found


def _structure_of(model):
    """Return the structure of the model, its optimizer and its loss, as JSON values."""
    return {
        "model": _config_of(model),
        "variables": [[list(v.shape), _kind(v)] for v in variables_of(model).values()],
        "optimizer": _config_of(optimizer_of(model)),
        "loss": model.loss if isinstance(model.loss, str) else _config_of(model.loss),
    }


def _config_of(value):
    config = keras.saving.serialize_keras_object(value)
    return _without_names(config["config"] if isinstance(config, dict) else config)


def _kind(variable):
    """Return the dtype of a variable; the width of integers depends on the backend."""
    dtype = str(variable.dtype)
    return "int" if "int" in dtype else dtype


def _without_names(config):
    """Return a config without names, which Keras numbers, and what depends on the backend."""
    dropped = {"name", "module", "registered_name", "build_config", "inbound_nodes"}
    dropped |= {"input_layers", "output_layers"}
    if isinstance(config, dict):
        return {k: _without_names(v) for k, v in config.items() if k not in dropped}
    if isinstance(config, (list, tuple)):
        return [_without_names(v) for v in config]
    return config


def _differences(before, now, name):
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [key for key in before if key in now]:
            inside = f"{name}.{key}" if name else str(key)
            yield from _differences(before[key], now[key], inside)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _differences(a, b, f"{name}[{i}]")
    elif before != now:
        yield name, before, now


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
