"""The state of a training: every number that the next step depends on."""

import contextlib
import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import global_seed_generator

log = logging.getLogger(__name__)


def variables_of(model: keras.Model) -> dict[str, Any]:
    """Return the variables of a training by name: `"weights/0"`, `"optimizer/3"`, ...

    The weights include the states of seed generators; the optimizer's include its step,
    moments, moving average, accumulated gradients and loss scale; the metrics are those
    of the running epoch.
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


def random_states() -> dict[str, Any]:
    """Return the states of the generators outside of the model.

    They are those of `random`, of `numpy.random` and of Keras; under PyTorch also its
    own, from which a `Dropout` without a seed draws.
    """
    # First, because Keras draws the seed of a new generator from `random`.
    generator = global_seed_generator()
    states = {
        "python": random.getstate(),
        "numpy": [*np.random.get_state()],
        "keras": np.array(keras.ops.convert_to_numpy(generator.state.value)),
    }
    if keras.backend.backend() == "torch":
        import torch

        states["torch"] = torch.get_rng_state().numpy()
        states["cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the states that `random_states` returned, those of PyTorch only under PyTorch."""
    # First, because Keras draws the seed of a new generator from `random`.
    global_seed_generator().state.assign(states["keras"])
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
                "The run was saved with %d GPUs; its random states do not continue on %d.",
                len(states["cuda"]),
                torch.cuda.device_count(),
            )


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Set the random states back at the end, so that the body has no effect on training."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)
