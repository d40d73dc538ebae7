"""What depends on the backend by name. Read before Keras is imported, so without it."""

import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path

from keras_vitx.text import needs_extra

BACKENDS = ("tensorflow", "jax", "torch")

# As glibc's malloc.h has them.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# As drivers of NVIDIA, AMD and Google name them.
ACCELERATORS = ("nvidiactl", "kfd", "accel0")


def choose() -> None:
    """See to it that Keras finds a backend.

    The choice is the user's: `--backend` on the command line of `keras-vitx`,
    `KERAS_BACKEND`, or Keras's own file. Where there is none and Keras's
    default is not installed, the first one that is installed is taken.

    Raises:
        ImportError: when no backend is installed, or not the chosen one.
    """
    if "keras" in sys.modules:
        return
    chosen = _on_command_line() or os.environ.get("KERAS_BACKEND") or _in_keras_file()
    if chosen is None:
        installed = [backend for backend in BACKENDS if importlib.util.find_spec(backend)]
        if not installed:
            raise ImportError(
                needs_extra(
                    "keras_vitx needs TensorFlow, JAX or PyTorch, and none is installed", *BACKENDS
                )
            )
        chosen = installed[0]
    elif chosen in BACKENDS and not importlib.util.find_spec(chosen):
        raise ImportError(
            needs_extra(f"The backend {chosen!r} is chosen but not installed", chosen)
        )
    os.environ["KERAS_BACKEND"] = chosen


def without_gradients() -> contextlib.AbstractContextManager:
    """Keep PyTorch from holding on to every activation for a backward pass."""
    import keras

    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def keep_memory() -> bool:
    """Let the C library keep what is freed, up to a GiB, for what comes next.

    By default glibc hands back what is freed in pieces as large as attention maps, and
    the system clears every page of it when it is asked for again (`docs/speed.md` has
    what that takes). `KERAS_VITX_KEEP_MEMORY=0` leaves the library as it is, and
    so does a setting of its own, such as `MALLOC_TRIM_THRESHOLD_`.

    Returns:
        Whether anything was changed: only with glibc, and without a GPU or TPU.
    """
    settings = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    off = os.environ.get("KERAS_VITX_KEEP_MEMORY") == "0" or any(map(os.environ.get, settings))
    # Asked of the system, since to ask a backend may start its devices too early.
    elsewhere = any(Path("/dev", device).exists() for device in ACCELERATORS)
    if off or elsewhere or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    # Larger blocks than 32 MiB, the most that glibc allows here, come and go as before.
    kept = library.mallopt(M_MMAP_THRESHOLD, 32 << 20)
    return bool(kept and library.mallopt(M_TRIM_THRESHOLD, 1 << 30))


def _on_command_line() -> str | None:
    """Return `--backend` of a `keras-vitx` command.

    Python imports this package, and with it Keras, before the command can read
    its own options.
    """
    command = sys.orig_argv
    if "keras_vitx.cli" not in command and not any(
        Path(word).name in ("keras-vitx", "keras-vitx.exe") for word in command[:3]
    ):
        return None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "--backend" and following in BACKENDS:
            return following
        if word.startswith("--backend=") and word.partition("=")[2] in BACKENDS:
            return word.partition("=")[2]
    return None


def _in_keras_file() -> str | None:
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return json.loads((folder / "keras.json").read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
