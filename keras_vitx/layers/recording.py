"""Tensors inside a layer that somebody listens to: maps and branches for `analysis.trace`."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

# By thread. A plain dictionary, as a `ContextVar` stops `torch.compile`.
_LISTENERS: dict[int, dict[str, Any]] = {}


def record(name: str, x: Any) -> None:
    """Keep a tensor under a name for `recording`, if it is on."""
    if is_recording():
        _LISTENERS[threading.get_ident()][name] = x


def is_recording() -> bool:
    """Return whether this thread records."""
    return bool(_LISTENERS) and threading.get_ident() in _LISTENERS


@contextlib.contextmanager
def recording() -> Iterator[dict[str, Any]]:
    """Return a context whose value has what this thread records, by name; the last of a name."""
    _LISTENERS[threading.get_ident()] = found = {}
    try:
        yield found
    finally:
        del _LISTENERS[threading.get_ident()]
