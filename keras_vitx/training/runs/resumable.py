"""`fit` of Keras for long trainings: it can be killed at any moment and continued."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.data import Pipelines
from keras_vitx.keras_internals import build_training
from keras_vitx.training.batches import steps_of
from keras_vitx.training.callbacks import CountEpochs
from keras_vitx.training.devices import highest, is_chief
from keras_vitx.training.devices.replicas import Replicate, share_of
from keras_vitx.training.runs.checkpoints import Checkpoints
from keras_vitx.training.runs.rest import Window, from_place
from keras_vitx.training.runs.saving import Saving
from keras_vitx.training.runs.state import arrays_of, assign, variables_of

log = logging.getLogger(__name__)


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
    facts: Mapping[str, Any] | None = None,
) -> keras.callbacks.History:
    """Train a compiled model as `model.fit` does, and save all that the next step depends on.

    A training that was killed continues with `resume=True`, on the same backend with the
    same numbers, bit for bit, as if it had not been killed, also in the middle of an
    epoch. That holds for batches that depend on their epoch and index only, as those of
    `keras_vitx.data`, and on a GPU for kernels that are deterministic.

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
        facts: Settings, as JSON values, that a continued training must have in common
            with the one before, such as a recipe.

    Returns:
        The history of all epochs.

    Raises:
        ValueError: if `folder` has checkpoints and `resume` is false, or if the model,
            the optimizer, the number of steps or `facts` differ from those of the
            checkpoint; the message says in what.
        OSError: if a checkpoint can't be written or read.
    """
    start = start_of(
        model, batches, folder, keep, resume, steps_per_epoch=steps_per_epoch, facts=facts
    )
    return start.fit(epochs, save_every, callbacks, class_weight, verbose)


@dataclass(frozen=True)
class Start:
    """Where a training starts: at its beginning, or from a checkpoint.

    Attributes:
        model: The model, with all variables that training needs.
        batches: The batches of an epoch.
        steps: Steps per epoch.
        steps_per_epoch: That of `fit`.
        checkpoints: Where the states are written; None for nowhere.
        facts: What a continued training must have in common with this one.
        state: The state from which the training continues, or None.
    """

    model: keras.Model
    batches: Any
    steps: int
    steps_per_epoch: int | None
    checkpoints: Checkpoints | None = None
    facts: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None

    def fit(
        self,
        epochs: int,
        save_every: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        class_weight: Mapping[int, float] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Train; see `resumable_fit`."""
        model, state = self.model, self.state
        if hasattr(self.batches, "set_epoch"):
            callbacks = [CountEpochs(self.batches), *callbacks]
        settings = {"shuffle": False, "verbose": verbose}
        if class_weight is not None:
            settings["class_weight"] = class_weight
        if self.checkpoints is None:
            settings |= {"epochs": epochs, "callbacks": [*callbacks, Replicate()]}
            return model.fit(
                share_of(self.batches), steps_per_epoch=self.steps_per_epoch, **settings
            )
        if save_every is not None and save_every < 1:
            raise ValueError(f"`save_every` must be at least 1. Received: {save_every}.")
        stateful = {
            type(callback).__name__: callback
            for callback in callbacks
            if hasattr(callback, "get_state") and hasattr(callback, "set_state")
        }
        saving = Saving(self.checkpoints, save_every, self.facts, stateful, state)
        listed = settings["callbacks"] = CallbacksOfAll(
            [saving, *callbacks, Replicate()],
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=self.steps,
        )
        listed.saving = saving
        epoch, step = (0, 0) if state is None else (state["epoch"], state["step"])
        with saving.signals():
            listed.begin()
            if state is not None:
                model.history.epoch = state["history"]["epoch"]
                model.history.history = state["history"]["logs"]
                for name in stateful.keys() & state["callbacks"].keys():
                    stateful[name].set_state(state["callbacks"][name])
            model.stop_training = False
            if step:
                listed.first_step = step
                rest = self._from(epoch, step)
                model.fit(**rest, initial_epoch=epoch, epochs=epoch + 1, **settings)
                listed.first_step = 0
                epoch += 1
                if epoch < epochs and not model.stop_training:
                    # The end of `fit` put the moving average in the place of the weights.
                    assign(model, listed.at_epoch_end)
            if epoch < epochs and not model.stop_training:
                rest = self._from(epoch, 0)
                model.fit(**rest, initial_epoch=epoch, epochs=epochs, **settings)
            listed.end()
        return model.history

    def _from(self, epoch, step):
        whole = self.steps_per_epoch
        place = step if whole is None else epoch * self.steps + step
        rest = from_place(self.batches, place, self.steps - step, whole)
        return {**rest, "x": share_of(rest["x"])}


def start_of(
    model: keras.Model,
    batches: Any,
    folder: str | os.PathLike | None,
    keep: int = 3,
    resume: bool = False,
    *,
    steps_per_epoch: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Start:
    """Check and load all that a training starts from; the first part of `resumable_fit`."""
    checkpoints = None if folder is None else Checkpoints(folder, keep)
    if checkpoints and checkpoints.files and not resume:
        raise ValueError(
            f"{folder} holds the checkpoints of another training. Give `resume=True` to continue "
            "it, or another folder."
        )
    if steps_per_epoch and hasattr(batches, "set_epoch") and steps_per_epoch < len(batches):
        # Such batches are shuffled in each epoch, so each epoch can begin with the first one.
        batches, steps_per_epoch = Window(batches, 0, steps_per_epoch), None
    steps = steps_per_epoch or _steps_of(batches)
    if checkpoints is None:
        return Start(model, batches, steps, steps_per_epoch)
    build_training(model, _first_of(batches))
    facts = json.loads(json.dumps({**(facts or {}), "steps": steps, **_facts_of(model)}))
    if is_chief():
        checkpoints.remove_unfinished()
    state = checkpoints.read() if resume else None
    if state is not None:
        check_same(state["facts"], facts)
        assign(model, state["arrays"])
        if state["backend"] != keras.backend.backend():
            log.warning(
                "The training began on %s. It continues on %s, but not bit for bit.",
                state["backend"],
                keras.backend.backend(),
            )
    # No process writes a checkpoint before all have read theirs.
    highest(0)
    return Start(model, batches, steps, steps_per_epoch, checkpoints, facts, state)


class CallbacksOfAll(keras.callbacks.CallbackList):
    """The callbacks of one training that takes two calls of `fit`.

    The first call trains on the rest of an epoch, from `first_step` on. The callbacks see
    one beginning, one end, and the steps of whole epochs.
    """

    saving: Saving
    first_step = 0
    last_logs: Mapping[str, float] | None = None
    at_epoch_end: Mapping[str, np.ndarray] = {}

    def begin(self) -> None:
        """Begin the training."""
        super().on_train_begin()

    def end(self) -> None:
        """End the training."""
        super().on_train_end(self.last_logs)

    def on_train_begin(self, logs=None):
        """Do nothing: `begin` does it."""

    def on_train_end(self, logs=None):
        """Do nothing: `end` does it."""

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch + self.first_step, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self.first_step, logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.last_logs = logs
        self.saving.finish_epoch(epoch)
        if self.first_step:
            self.at_epoch_end = arrays_of(self.model)


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the facts of a run are those of its checkpoint.

    Raises:
        ValueError: if not; the message has the first differences.
    """
    found = list(_differences(before, now, ""))
    if found:
        lines = [f"{name} was {_short(a)}, is now {_short(b)}" for name, a, b in found[:6]]
        more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
        raise ValueError(
            f"The training can't be resumed, because it is another one: {'; '.join(lines)}{more}."
        )


def data_facts(batches: Pipelines) -> dict[str, Any]:
    """Return facts that tell two sources apart, as JSON values.

    They are empty for batches that are not of `keras_vitx.data`.
    """
    found = {}
    for name in ("train", "validation"):
        part = getattr(getattr(batches, name), "part", None)
        if part is not None:
            digest = hashlib.sha256(np.ascontiguousarray(part.labels).tobytes())
            for index in sorted({0, part.size // 2, part.size - 1}):
                # Files are told apart by their names: they may be large, or can't be read.
                ident = part.id(index)
                is_file = isinstance(ident, (str, os.PathLike))
                digest.update(
                    Path(ident).name.encode() if is_file else part.images[index].tobytes()
                )
            found[name] = {"images": part.size, "contents": digest.hexdigest()[:16]}
    return found


def _facts_of(model):
    """Return the structure of the model and its optimizer, as JSON values."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return {
        "model": _without_names(keras.saving.serialize_keras_object(model)["config"]),
        "variables": [[list(v.shape), _kind(v)] for v in variables_of(model).values()],
        "optimizer": _without_names(keras.saving.serialize_keras_object(optimizer)["config"]),
    }


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
        for key in dict.fromkeys([*before, *now]):
            inside = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key), now.get(key), inside)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _differences(a, b, f"{name}[{i}]")
    elif before != now:
        yield name, before, now


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _steps_of(batches):
    length = batches.num_batches if isinstance(batches, keras.utils.PyDataset) else None
    return steps_of(batches) if length is None else length


def _first_of(batches):
    batch = batches[0] if isinstance(batches, keras.utils.PyDataset) else next(iter(batches))
    return keras.tree.map_structure(np.asarray, tuple(batch))
