"""Files are written whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` at the end.

    The body writes a file or a folder under the temporary name, which keeps
    the suffixes of `path`. When the body raises, nothing is left behind and
    whatever stood at `path` stays as it was.

    Args:
        path: Where the result shall stand. Missing parent folders are made.

    Raises:
        OSError: when the folder can't be written to.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        if path.is_dir() and not path.is_symlink():
            # A folder can't be renamed onto one that holds something.
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
        OSError: when one of the parents of `path` is a file, or the folder that would hold
            it can't be written to.
    """
    path = Path(path).expanduser().absolute()
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise NotADirectoryError(f"{path} can't be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: no permission to write to {parent}.")
