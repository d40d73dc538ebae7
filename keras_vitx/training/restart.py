"""A training that was killed and starts again after its last finished epoch, bit for bit."""

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from keras_vitx.files import atomic_write, local_path
from keras_vitx.training.devices import is_chief

# The number of epochs of a training that a callback ended.
ENDED = 10**9


@runtime_checkable
class HasState(Protocol):
    """A callback whose state `Restart` keeps, as JSON values and arrays."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class Restart(keras.callbacks.History):
    """The history of a training, and all that its next epoch depends on, in a file.

    After each epoch the file has the variables of the model and its optimizer, the number of
    finished epochs, the history, the states of Python's, NumPy's and PyTorch's random numbers, and
    the states of those `callbacks` that have `get_state` and `set_state`; others start anew.
    `docs/training.md` has the lines of plain `model.fit`.

    A kill at any moment leaves the file of the last finished epoch whole. On the same backend, the
    training then ends with the same numbers, bit for bit, if the batches of an epoch depend on its
    number only, as those of `keras_vitx.data`, and GPU kernels are deterministic.

    Args:
        path: Path of the file, which the chief process writes; read here if it exists.
        callbacks: The callbacks before this one in `fit`.

    Attributes:
        initial_epoch: Number of finished epochs; beyond all epochs if a callback ended the
            training.
    """

    def __init__(self, path: str | os.PathLike, callbacks: Sequence[keras.callbacks.Callback] = ()):
        super().__init__()
        self.path = local_path(path)
        self.stateful = [callback for callback in callbacks if isinstance(callback, HasState)]
        self.state = read_state(self.path) if self.path.exists() else None
        self.initial_epoch = self.state["epochs"] if self.state else 0
        self.random: dict[str, Any] | None = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.state is not None:
            if not self.model.optimizer.built:  # Under TensorFlow, the first step would build it.
                self.model.optimizer.build(self.model.trainable_variables)
            assign_values(self._variables(), self.state["arrays"])
            set_random_states(self.state["random"])
            self.random = self.state["random"]
            self.epoch, self.history = self.state["history"]
            for callback, state in zip(self.stateful, self.state["callbacks"], strict=True):
                callback.set_state(state)
            self.state = None

    def on_train_batch_begin(self, batch, logs=None):
        # Under PyTorch, Keras draws a number where it opens the batches, in a process once.
        if self.random is not None and is_chief():
            set_random_states(self.random)
        self.random = None

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        state = {
            "epochs": ENDED if self.model.stop_training else epoch + 1,
            "arrays": arrays_of(self._variables()),
            "random": random_states(),
            "history": [self.epoch, self.history],
            "callbacks": [callback.get_state() for callback in self.stateful],
        }
        if is_chief():
            write_state(self.path, state)

    def _variables(self):
        return [*variables_of(self.model), *self.model.optimizer.variables]


def write_state(path: str | os.PathLike, state: Mapping[str, Any]) -> None:
    """Write JSON values and arrays, at any depth, as safetensors, whole or not at all."""
    arrays: dict[str, np.ndarray] = {}

    def name_of(array: np.ndarray | np.generic) -> Any:
        if isinstance(array, np.generic):
            return array.item()
        name = str(len(arrays))
        arrays[name] = np.asarray(array, order="C")
        return {"array": name}

    text = json.dumps(state, default=name_of)
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(arrays, {"state": text}))  # A full disk is an OSError.


def read_state(path: str | os.PathLike) -> dict[str, Any]:
    """Return the state in a file of `write_state`."""
    with safe_open(path, "numpy") as file:

        def array_of(value: dict[str, Any]) -> Any:
            return file.get_tensor(value["array"]) if value.keys() == {"array"} else value

        return json.loads(file.metadata()["state"], object_hook=array_of)


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """Return all variables of a model that training changes, seeds and statistics included."""
    return [*model.trainable_variables, *model.non_trainable_variables]


def arrays_of(variables: Iterable[keras.Variable]) -> list[np.ndarray]:
    """Return copies of the values of variables."""
    # Copies, as `convert_to_numpy` shares the variable's memory under PyTorch. Via a tensor, as
    # the value of a variable on several devices may be None.
    return [np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(v))) for v in variables]


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
    """Restore the states of `random_states`."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(states["numpy"]))
    if keras.backend.backend() == "torch":
        import torch

        torch.set_rng_state(torch.from_numpy(states["torch"]))
        torch.cuda.set_rng_state_all([torch.from_numpy(state) for state in states["cuda"]])
