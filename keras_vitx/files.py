"""Paths of this machine, writing files whole or not at all, and the records of runs."""

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def local_path(path: str | os.PathLike) -> Path:
    """Return a path of this machine; a ValueError refuses an address, as `gs://bucket/model`."""
    # Two letters at least: "C:/models" is a path. `Path` joins the slashes of an address.
    if re.match(r"[A-Za-z][\w+.-]+:/", os.fsdecode(path)):
        rule = "`path` must be local. Write to a local path and copy it, or read a local copy."
        raise ValueError(f"{rule} Received: {os.fsdecode(path)!r}.")
    return Path(os.fsdecode(path)).expanduser()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a path beside `path` for a file or a directory, which takes its place at the end.

    If the body raises, or the process is killed, `path` is as before; a killed process leaves a
    directory `.unfinished-*` beside it. (A directory is replaced by two renames: killed between
    them, that has the old one and the new one.) Missing parent directories are made, links are
    followed, and an OSError refuses a file that is write-protected or a device.
    """
    path = Path(os.path.realpath(local_path(path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        path.open("ab").close()
    elif path.exists() and not path.is_dir():
        raise FileExistsError(f"{str(path)!r} is neither a file nor a directory.")
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as beside:
        temporary = Path(beside, path.name)
        yield temporary
        if not (path.is_dir() and temporary.is_dir()):
            temporary.replace(path)
            return
        before = Path(tempfile.mkdtemp(dir=beside), "before")
        try:
            path.rename(before)
            temporary.replace(path)
        except BaseException:  # The directory beside is deleted.
            if not path.exists():
                before.rename(path)
            raise


def read_record(run: str | os.PathLike) -> dict[str, Any]:
    """Read the record of a training run from its directory or its `run.json`."""
    path = local_path(run)
    path = path / "run.json" if path.is_dir() else path
    try:
        return {"recipe": {}, "held_out": []} | dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or not of a run: {error}") from error


def own_held_out(file: str | os.PathLike, source: Any) -> list[str] | float:
    """Return the images of `source` that the run of a model file held out; 0 of another source."""
    run = Path(file).with_name("run.json")
    record = read_record(run) if run.is_file() else {}
    if record.get("source") != str(Path(source).resolve()):
        return 0.0
    logging.getLogger(__name__).info("Measured: the images that %s held out.", run.parent)
    return record["held_out"]
