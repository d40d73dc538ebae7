"""Writing files whole or not at all."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
