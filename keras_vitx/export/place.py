"""Putting an exported file in its place, whole or not at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keras_vitx.export.formats.base import Format
from keras_vitx.export.record import record_of
from keras_vitx.files import left_unfinished, move, remove_unfinished, unfinished_beside


def check_free(path: Path, format: Format, overwrite: bool = False) -> None:
    """Check that a file of the format may be written to `path`.

    Raises:
        FileExistsError: if `path` exists and is not of this format, or is and `overwrite` is
            False; or if a file that belongs to it exists alone.
    """
    thing = format.title
    _remove_what_a_kill_left(path, format)
    if not path.exists() and not path.is_symlink():
        for companion in _companions(path, format):
            if companion.exists():
                raise FileExistsError(
                    f"path: {str(companion)!r} exists, where a file of {thing} would be written."
                )
        return
    is_file = path.is_file() if format.suffix else path.is_dir()
    if path.is_symlink() or not is_file or not format.is_one(path):
        raise FileExistsError(
            f"path: {str(path)!r} exists and holds other things than {_article(thing)}; "
            "choose a new path."
        )
    if not overwrite:
        raise FileExistsError(
            f"path: {str(path)!r} already holds {_article(thing)}; overwrite=True replaces it."
        )


@contextlib.contextmanager
def in_place(path: Path, format: Format) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end, move what was written there into place.

    If the process is killed, the old file is there, or the new one; the next export to `path`
    removes what else it left. The record is moved last: until then the old one stays, which
    `read_record` does not take for that of the new file.
    """
    with unfinished_beside(path) as unfinished:
        yield unfinished
        (format.move or move)(unfinished, path)
        if format.suffix:
            record_of(unfinished, format).replace(record_of(path, format))


def _remove_what_a_kill_left(path: Path, format: Format) -> None:
    for unfinished in left_unfinished(path):
        for companion in _companions(unfinished, format):
            placed = path.with_suffix(companion.suffix)
            pair = companion.exists(), placed.exists()
            if all(pair) and placed.samefile(companion) and not path.exists():
                placed.unlink()
    remove_unfinished(path)


def _companions(path: Path, format: Format) -> list[Path]:
    return [path.with_suffix(suffix) for suffix in format.companions]


def _article(title: str) -> str:
    return f"a{title[1:]}" if title.startswith("A ") else f"{title} data"
