"""Write files and folders whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` at the end.

    The body writes a file or a folder to the temporary path, which has the suffixes of
    `path`. If the body raises, nothing is left behind, and anything already at `path`
    is unchanged.

    Args:
        path: Destination. Missing parent folders are created.

    Raises:
        OSError: if the parent folder is not writable.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        if path.is_dir() and not path.is_symlink():
            # A folder can't be renamed to one that isn't empty.
            old = Path(folder) / "old"
            path.rename(old)
            try:
                unfinished.rename(path)
            except OSError:
                old.rename(path)
                raise
            shutil.rmtree(old)
        else:
            unfinished.replace(path)


def check_writable(path: str | os.PathLike) -> None:
    """Check, before long work, that a file or a folder can be written at `path`.

    Raises:
        OSError: if a parent of `path` is a file, or its nearest existing parent is not
            writable.
    """
    path = Path(path).expanduser().absolute()
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise NotADirectoryError(f"{path} can't be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: no permission to write to {parent}.")
