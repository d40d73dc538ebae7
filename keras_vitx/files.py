"""Writing files whole or not at all."""

import contextlib
import csv
import errno
import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK, OLD, NEW = "lock", "old", "new"


def local_path(path: str | os.PathLike) -> Path:
    """Return the path of an output; a ValueError refuses an address, as `gs://bucket/model`."""
    # Two letters at least: "C:/models" is a path. `Path` joins the slashes of an address.
    if re.match(r"[A-Za-z][\w+.-]+:/", os.fsdecode(path)):
        raise ValueError(f"Write to a local path and copy it. Received: {os.fsdecode(path)!r}.")
    return Path(os.fsdecode(path)).expanduser()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a path beside `path` for a file or a directory, which takes its place at the end.

    If the body raises, or the process is killed, `path` is as before. Missing parent directories
    are made. A directory is replaced by two renames, between which there is none.
    """
    path = local_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as beside:
        temporary = Path(beside, path.name)
        yield temporary
        if path.is_dir() and temporary.is_dir():
            path.rename(Path(tempfile.mkdtemp(dir=beside), "old"))
        temporary.replace(path)


def write_csv(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Write rows as a CSV file with the columns of all of them, whole or not at all."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    with (
        atomic_write(path) as temporary,
        # File names may be invalid UTF-8.
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(lines)


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a hidden directory that is locked against `remove_stale`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            directory = Path(tempfile.mkdtemp(prefix=f"{_hidden(path)}-", dir=path.parent))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            # Unless `remove_stale` was faster.
            with contextlib.suppress(Timeout, FileNotFoundError):
                stack.enter_context(FileLock(directory / LOCK, blocking=False))
                break
        (directory / NEW).mkdir()
        yield directory / NEW / path.name


def move(temporary: Path, path: Path) -> None:
    """Put a file or a directory in the place of `path`.

    A directory can't be renamed to one that isn't empty, which is set aside first. A kill in
    between leaves none; `remove_stale` restores it.
    """
    old = temporary.parents[1] / OLD
    try:
        while True:
            try:
                temporary.replace(path)
                return
            except OSError as error:
                is_windows = os.name == "nt" and temporary.is_dir() and path.is_dir()
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not is_windows:
                    raise
            # Another process may put its own here before the next turn.
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                path.rename(old)
    finally:
        _restore(old, path)


def remove_stale(path: Path) -> None:
    """Remove what killed processes left of `path`, but not what others are writing."""
    for directory in _hidden_directories(path):
        with contextlib.suppress(OSError):  # A `Timeout` if it is locked.
            with FileLock(directory / LOCK, blocking=False):
                _restore(directory / OLD, path)
            shutil.rmtree(directory, ignore_errors=True)


def _restore(old: Path, path: Path) -> None:
    if old.exists() and not os.path.lexists(path):
        try:
            old.rename(path)
        except OSError as error:
            # Another process has put its own there meanwhile.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _hidden(path: Path) -> str:
    return f".unfinished-{_short(path.name)}"


def _short(name: str) -> str:
    if len(os.fsencode(name)) <= 100:  # File systems allow 255 bytes, encrypted ones 143.
        return name
    return f"{name[:20]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


def _hidden_directories(path: Path) -> list[Path]:
    found = path.parent.glob(f"{glob.escape(_hidden(path))}-*")
    return [each for each in found if each.name.rpartition("-")[0] == _hidden(path)]


def check_writable(path: str | os.PathLike) -> None:
    """Raise an OSError, before long work, if a file or a directory can't be written at `path`."""
    path = Path(path).expanduser().absolute()
    parent = next(directory for directory in path.parents if os.path.lexists(directory))
    if not parent.is_dir():
        raise NotADirectoryError(f"{path} can't be written: {parent} is not a directory.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: no permission to write to {parent}.")
