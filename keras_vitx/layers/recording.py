"""Tensors inside a layer that somebody listens to, or changes: maps and branches."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Tensor(Protocol):
    """A tensor of the backend or of Keras's functional API, or an array of NumPy."""

    shape: Any
    dtype: Any


# By thread. A plain dictionary, as a `ContextVar` stops `torch.compile`.
_LISTENERS: dict[int, tuple[dict[str, Any], Callable[[str, Any], Any]]] = {}


def record(name: str, x: Tensor) -> Any:
    """Keep a tensor under a name for `recording`, if it is on; return what to go on with.

    That is `x`, unless `keras_vitx.analysis.attribute` asks how the result depends on it.
    """
    if is_recording():
        records, change = _LISTENERS[threading.get_ident()]
        records[name] = x = change(name, x)
    return x


def is_recording() -> bool:
    """Return whether this thread records."""
    return bool(_LISTENERS) and threading.get_ident() in _LISTENERS


@contextlib.contextmanager
def recording(change: Callable[[str, Any], Any] = lambda name, x: x) -> Iterator[dict[str, Any]]:
    """Return a context whose value has what this thread records, by name; the last of a name.

    The layers go on with `change(name, x)` in place of each tensor.
    """
    records: dict[str, Any] = {}
    _LISTENERS[threading.get_ident()] = records, change
    try:
        yield records
    finally:
        del _LISTENERS[threading.get_ident()]
