"""Readers of all supported weights files, which read one array at a time."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from keras_vitx.weights.description import Description
from keras_vitx.weights.reading.h5 import read_weights_h5
from keras_vitx.weights.reading.keras_file import check_archive, read_keras
from keras_vitx.weights.reading.safetensors_file import read_safetensors
from keras_vitx.weights.reading.tensors import Refused, Tensors
from keras_vitx.weights.reading.torch_file import read_torch

KINDS = {
    ".safetensors": read_safetensors,
    ".pth": read_torch,
    ".pt": read_torch,
    ".bin": read_torch,
    ".pth.tar": read_torch,
    ".weights.h5": read_weights_h5,
    ".keras": read_keras,
}


def suffix_of(path: Path) -> str | None:
    """Return the supported suffix of a path, or None if it has another one."""
    return next((suffix for suffix in KINDS if path.name.endswith(suffix)), None)


@contextlib.contextmanager
def opened(path: Path, model, description: Description | None = None) -> Iterator[Tensors]:
    """Open a weights file for a model.

    Opening a file neither allocates memory based on sizes that it merely claims nor runs
    any code in it. All errors in the file are detected here, so that `Tensors.read`
    succeeds.

    Args:
        path: The file; its suffix is one of `KINDS`.
        model: The built model that the weights are for.
        description: Description of the file's model, which overrides the one in the file.

    Raises:
        ValueError: if the file is damaged, is not in the format of its suffix, or holds
            anything but arrays.
        ImportError: if a PyTorch file is given and PyTorch isn't installed.
    """
    kind = suffix_of(path)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        try:
            tensors = stack.enter_context(KINDS[kind](path, model))
        except (ImportError, Refused):
            raise
        except Exception as error:  # The readers raise whatever a bad file provokes.
            raise ValueError(f"The file is damaged or no {kind} file ({_cause(error)}).") from error
        if not tensors.shapes:
            raise ValueError("The file holds no arrays.")
        yield replace(tensors, description=description) if description else tensors


def _cause(error: Exception) -> str:
    """Return a library's error in one line of limited length."""
    line = str(error).split("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
