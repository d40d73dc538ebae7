"""Saving and restoring the state of a training between two steps of `fit`."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_vitx.training.devices import highest, in_use, is_chief
from keras_vitx.training.runs.checkpoints import Checkpoints
from keras_vitx.training.runs.state import arrays_of, assign, random_states, set_random_states

log = logging.getLogger(__name__)

TERMINATED = 128 + signal.SIGTERM
# Several processes end at the same step: every so many, they ask each other for signals.
AGREE_EVERY = 10


class Terminated(SystemExit):
    """SIGTERM ended a training after its state was saved; the exit code is 143."""

    def __init__(self, message: str):
        super().__init__(TERMINATED)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Saving(keras.callbacks.Callback):
    """Save the state of a training at the beginning of a step, and restore it there.

    Of several processes, the chief writes, and each restores.

    At that moment, all other callbacks have done their work for the step before, and the
    iterator over the epoch has drawn its random numbers.

    Args:
        checkpoints: Where the states are written.
        every: Number of steps between two states; None for one per epoch. The states
            before the first step and after the last epoch are always written.
        facts: Facts of the run, written with each state.
        stateful: Callbacks with `get_state` and `set_state` by name; their states are
            included.
        state: The state to restore at the first step; None for a new run.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every: int | None,
        facts: Mapping[str, Any],
        stateful: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.checkpoints, self.every, self.facts = checkpoints, every, facts
        self.stateful, self.state = stateful, state
        self.epoch = 0
        self.saved = None
        self.signal: int | None = None
        self.asked = 0
        self.alone = in_use().processes == 1

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    # Called by the main thread, even where Keras calls the ends of steps from other threads.
    def on_train_batch_begin(self, batch, logs=None):
        step = self.epoch * self.params["steps"] + batch
        if self.alone or step % AGREE_EVERY == 0:
            self.asked = highest(self.signal or 0)
        if self.state is not None:
            self.restore()
            self.state, self.saved = None, step
        if self._is_due(step, batch) or (self.asked and self.saved != step):
            self.save(self.epoch, batch)
        self._stop_if_asked()

    def finish_epoch(self, epoch: int) -> None:
        """Write the last state if the training ends with this epoch.

        To be called after the `on_epoch_end` of all callbacks.
        """
        epochs = self.params["epochs"]
        if epoch == epochs - 1 or self.model.stop_training:
            self.save(epochs, 0)
            self.asked = highest(self.signal or 0)
            self._stop_if_asked()

    def save(self, epoch: int, batch: int) -> None:
        """Write the state before step `batch` of an epoch, both counted from 0.

        A state that is not finite is not written.
        """
        step = epoch * self.params["steps"] + batch
        arrays = arrays_of(self.model)
        if not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind not in "iub"):
            log.warning("The state before step %d is not finite, and is not saved.", step + 1)
            return
        state = {
            "facts": self.facts,
            "backend": keras.backend.backend(),
            "epoch": epoch,
            "step": batch,
            "arrays": arrays,
            "random": random_states(),
            "history": {"epoch": self.model.history.epoch, "logs": self.model.history.history},
            "callbacks": {name: callback.get_state() for name, callback in self.stateful.items()},
        }
        if is_chief():
            self.checkpoints.write(step, state)
        self.saved = step

    def restore(self) -> None:
        """Set the variables and the random states to those of `state`."""
        assign(self.model, self.state["arrays"])
        set_random_states(self.state["random"])

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let the first SIGTERM or Ctrl-C wait for the end of the step.

        Outside of the main thread, where Python allows no handlers, nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def note(number, frame):
            self.signal = number
            # The second one acts at once.
            for each, handler in before.items():
                signal.signal(each, handler or signal.SIG_DFL)
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
                # None stands for a handler that isn't Python's.
                signal.signal(number, handler or signal.SIG_DFL)

    def _is_due(self, step, batch):
        if self.saved is None:
            return True
        if self.every is None:
            return batch == 0 and step > self.saved
        return step >= self.saved + self.every

    def _stop_if_asked(self):
        if self.asked:
            files = self.checkpoints.files
            said = f"The state is saved in {files[-1]}." if files else "No state is saved."
            raise KeyboardInterrupt(said) if self.asked == signal.SIGINT else Terminated(said)
