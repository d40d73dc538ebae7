"""Atomic writes of files and folders."""

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where no folder is locked, nor removed if it is left.
    fcntl = None


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with its suffixes, and rename it to `path` at the end.

    If the body raises, nothing is left behind and `path` is unchanged. Missing parent folders are
    created. An OSError is raised if the parent folder is not writable.
    """
    path = Path(path).expanduser()
    with temporary_beside(path) as temporary:
        yield temporary
        move(temporary, path)


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a hidden folder, which is locked against `remove_stale`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=f"{_hidden(path)}-", dir=path.parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder))
            # Unless it was removed before it was locked.
            if folder.exists():
                break
        yield folder / path.name


def move(temporary: Path, path: Path) -> None:
    """Put a file or a folder in the place of `path`, in one step.

    If the system can't exchange folders, a kill in between leaves none; `remove_stale` restores it.
    """
    if not path.is_dir() or path.is_symlink():
        temporary.replace(path)
    elif not _exchange(temporary, path):
        # A folder can't be renamed to one that isn't empty.
        old = _old(temporary)
        path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise


def remove_stale(path: Path) -> None:
    """Remove what killed processes left of `path`, but not what others are writing."""
    if not path.parent.is_dir():
        return
    for folder in path.parent.iterdir():
        if folder.name.rpartition("-")[0] != _hidden(path):
            continue
        with _locked(folder) as is_free:
            if is_free:
                old = _old(folder / path.name)
                if old.exists() and not os.path.lexists(path):
                    old.rename(path)
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, and yield whether no other process holds it. A lock ends with its process."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # It is gone, or the system opens no folders (Windows).
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(handle)


def _hidden(path: Path) -> str:
    return f".unfinished-{path.name}"


def _old(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.old")


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two paths in one step, and return whether the system can (Linux)."""
    rename = None if os.name == "nt" else getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(path), os.fsencode(other)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


def check_writable(path: str | os.PathLike) -> None:
    """Raise an OSError, before long work, if a file or a folder can't be written at `path`."""
    path = Path(path).expanduser().absolute()
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise NotADirectoryError(f"{path} can't be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: no permission to write to {parent}.")
