"""Progress of a training: images per second, the learning rate, and the time left."""

import datetime
import sys
import time
from typing import Any

import keras


class Clock(keras.callbacks.Callback):
    """Measure the training steps of each epoch, without validation.

    Args:
        batch_size: Images per step.
    """

    # Keras may call it from another thread, so that steps do not wait for their losses.
    async_safe = True

    def __init__(self, batch_size: int):
        super().__init__()
        self.batch_size = batch_size
        self.seconds_before = 0.0
        self.steps = 0
        self.row: dict[str, float] = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()
        self.first: tuple[int, float] | None = None
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps = max(self.steps, batch + 1)
        if self.first is None:
            self.first = batch + 1, time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = self._seconds()
        self.row = {
            "learning_rate": float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)),
            "seconds": round(seconds, 3),
            "images_per_second": round(self.steps * self.batch_size / max(seconds, 1e-9), 1),
        }
        self.seconds_before = 0.0

    @property
    def images_per_second(self) -> float:
        """The rate in this epoch, without the first step, which compiles."""
        if self.first is None or self.steps <= self.first[0]:
            return 0.0
        step, start = self.first
        return (self.steps - step) * self.batch_size / max(time.perf_counter() - start, 1e-9)

    def get_state(self) -> dict[str, Any]:
        """Return the seconds of the running epoch, for a checkpoint."""
        return {"seconds": self._seconds()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_state` returned."""
        self.seconds_before = state["seconds"]

    def _seconds(self):
        return self.seconds_before + time.perf_counter() - self.start


class Progress(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, which shows the time left in an epoch, with two more numbers.

    They are the images per second, and before each epoch the time left in the training.

    Args:
        clock: The clock, which comes before it in the list of callbacks.
    """

    async_safe = True

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock
        self.begun: tuple[int, float] | None = None

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        first, start = self.begun or (epoch, time.perf_counter())
        self.begun = first, start
        if epoch > first:
            seconds = (time.perf_counter() - start) / (epoch - first) * (self.epochs - epoch)
            print(f"{datetime.timedelta(seconds=round(seconds))} left", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        rate = self.clock.images_per_second
        super().on_train_batch_end(batch, {**(logs or {}), "images/s": rate})

    def on_epoch_end(self, epoch, logs=None):
        rate = self.clock.row["images_per_second"]
        super().on_epoch_end(epoch, {**(logs or {}), "images/s": rate})


def verbosity(verbose: str | int) -> int:
    """Return `verbose` of Keras as a number: `"auto"` is one line per epoch in a pipe."""
    if verbose != "auto":
        return int(verbose)
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
