"""Choice of the Keras backend, and process-wide settings. Imported before Keras."""

import contextlib
import functools
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_vitx.text import needs_extra

log = logging.getLogger(__name__)

# In order of preference.
BACKENDS = ("jax", "torch", "tensorflow")

# The configuration file that Keras writes on its first import, whatever the backend.
WRITTEN_BY_KERAS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}

WORKER = "KERAS_VITX_WORKER"
"""Set in the environment of processes that make batches, which need no Keras."""


def choose(requested: str | None = None) -> None:
    """Set the backend of Keras, before Keras is imported.

    The first that is given: `requested` (`--backend`); `KERAS_BACKEND`; that of
    `~/.keras/keras.json`, unless it is as Keras writes it; the first of JAX, PyTorch and TensorFlow
    that is installed. TensorFlow is last, because the extras `data` and `export` install it, too.

    Raises an ImportError if none is installed.
    """
    if "keras" in sys.modules:
        return
    name = requested or os.environ.get("KERAS_BACKEND") or _in_keras_file()
    if not name:
        installed = [backend for backend in BACKENDS if _is_installed(backend)]
        if not installed:
            what = "keras_vitx needs JAX, PyTorch or TensorFlow, and none is installed"
            raise ImportError(needs_extra(what, *BACKENDS))
        name = installed[0]
        if len(installed) > 1:
            log.warning(
                "Keras runs on %s (installed: %s). KERAS_BACKEND, or --backend of the "
                "command keras-vitx, chooses another.",
                name,
                ", ".join(installed),
            )
    os.environ["KERAS_BACKEND"] = name


def set_environment() -> None:
    """Set what a command sets in its environment: JAX keeps compiled programs in the user's cache.

    A program's name has the version of JAX, the instructions of the processor and XLA's flags.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "keras_vitx" / "jax"))


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # A directory that merely bears the name of a package has no origin.
    return spec is not None and spec.origin is not None


def is_command() -> bool:
    """Return whether this process is `keras-vitx` or `python -m keras_vitx.cli`."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    # With "python -m", argv[0] is "-m" while the package of the module is imported.
    as_module = program == "-m" and "keras_vitx.cli" in sys.orig_argv
    return as_module or Path(program).stem == "keras-vitx"


def is_worker() -> bool:
    """Return whether this process makes batches of `keras_vitx.data` for another one."""
    return WORKER in os.environ


def constant(like: Any, function: Callable, *arguments: Any) -> Any:
    """Return the array of a function, under PyTorch always the same tensor on a device.

    It is that of the tensor `like`. The other backends compile the array into their programs.
    """
    import keras

    if keras.backend.backend() == "torch":
        return _tensor(like.device, function, *arguments)
    return function(*arguments)


@functools.lru_cache(maxsize=4)
def _tensor(device, function, *arguments):
    import torch

    return torch.from_numpy(function(*arguments)).to(device)


def without_gradients() -> contextlib.AbstractContextManager:
    """Return a context in which PyTorch does not keep activations for a backward pass."""
    import keras

    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def restore_variables(model: Any) -> None:
    """Give the variables of a model their values, which Keras holds itself in a loop under JAX.

    Where an error ends `predict` or `evaluate`, it does not, and the model would be of no use.
    """
    getattr(model, "jax_state_sync", lambda: None)()


def input_gradient(function: Callable[..., Any], variables: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that gives the gradient of `function` by its first argument.

    `function` returns one number and is written with `keras.ops`; the result takes and returns
    arrays, or a dictionary of them, and is compiled if the backend compiles. Under JAX, the present
    values of `variables` are used: a model that Keras evaluates has none meanwhile.
    """
    import keras
    import numpy as np

    arrays = keras.tree.map_structure
    if keras.backend.backend() == "jax":
        import jax

        def stateless(x, values, *more):
            with keras.StatelessScope(zip(variables, values, strict=True)):
                return function(x, *more)

        # Copies, because Keras donates its arrays to the steps it compiles.
        values = [jax.numpy.array(variable.value) for variable in variables]
        gradient = jax.jit(jax.grad(stateless))
        return lambda x, *more: arrays(np.asarray, gradient(x, values, *more))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function(reduce_retracing=True)
        def gradient(x, *more):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x, *more)
            return tape.gradient(y, x)

        return lambda *inputs: arrays(np.asarray, gradient(*arrays(tf.convert_to_tensor, inputs)))

    import torch

    def gradient(x, *more):
        x = arrays(lambda array: keras.ops.convert_to_tensor(array).detach().requires_grad_(), x)
        gradients = torch.autograd.grad(function(x, *more), keras.tree.flatten(x))
        return arrays(lambda array: array.cpu().numpy(), keras.tree.pack_sequence_as(x, gradients))

    return gradient


def _in_keras_file() -> str | None:
    """Return the backend that the user set in Keras's configuration file, if any."""
    directory = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras").expanduser()
    try:
        content = json.loads((directory / "keras.json").read_text())
        untouched = content.items() >= WRITTEN_BY_KERAS.items()
        return None if untouched else content.get("backend")
    except (OSError, ValueError, AttributeError, RuntimeError):
        return None
