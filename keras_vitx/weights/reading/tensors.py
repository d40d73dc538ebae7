"""The arrays of an opened file, whatever its format."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from keras_vitx.weights.description import Description

# Floating-point types, as NumPy, PyTorch, Keras and safetensors spell them.
FLOATING = {"bfloat16", "float16", "float32", "float64", "bf16", "f16", "f32", "f64"}

# Prefixes that wrappers of PyTorch modules add to every name.
PREFIXES = ("module.", "model.", "_orig_mod.")


class Refused(ValueError):
    """The file has the right format but is not accepted; the message says why."""


@dataclass(frozen=True)
class Tensors:
    """The arrays of an opened file.

    Attributes:
        shapes: Shape of every array, by name.
        dtypes: Data type of every array, by name, as the file's format spells it.
        read: A function from a name to its array, as float32.
        native: Whether names and layouts are those of Keras variables rather than
            those of a PyTorch checkpoint.
        description: The description of the model in the file, if any.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    read: Callable[[str], np.ndarray]
    native: bool = False
    description: Description | None = None

    def is_floating(self, name: str) -> bool:
        """Return whether an array holds floating-point numbers, as weights do."""
        return self.dtypes[name].removeprefix("torch.").lower() in FLOATING


@contextlib.contextmanager
def describing(part: str) -> Iterator[None]:
    """Re-raise errors about a description as `Refused`, naming the part of the file."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"The file's {part} can't be used: {error}") from error


def without_prefixes(names) -> dict[str, str]:
    """Map each name, stripped of the prefixes that all names share, to the full name."""
    stripped = {name: name for name in names}
    while stripped:
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in stripped)), None)
        if prefix is None:
            break
        stripped = {name.removeprefix(prefix): old for name, old in stripped.items()}
    return stripped
