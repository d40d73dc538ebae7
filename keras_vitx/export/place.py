"""Putting an exported file in its place, whole or not at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keras_vitx.export.formats.base import Format
from keras_vitx.export.record import record_of
from keras_vitx.files import written_whole


def check_free(path: Path, format: Format, overwrite: bool = False) -> None:
    """Check that a file of the format may be written to `path`.

    Raises:
        FileExistsError: if `path` exists and is not of this format, or is and `overwrite` is
            False; or if a file that belongs to it exists alone.
    """
    thing = format.title
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

    A folder is moved as one. Of a file, its old record goes first, since it would describe
    another file; with companions, so does the old file itself, since an old graph with
    new weights would be worse than none.
    """
    if not format.suffix:
        with written_whole(path) as unfinished:
            yield unfinished
        return
    record = record_of(path, format)
    with written_whole(path) as unfinished:
        yield unfinished
        record.unlink(missing_ok=True)
        if format.companions:
            path.unlink(missing_ok=True)
        for companion in _companions(unfinished, format):
            companion.replace(path.with_name(companion.name))
        content = record_of(unfinished, format).read_bytes()
    with written_whole(record) as unfinished:
        unfinished.write_bytes(content)


def _companions(path: Path, format: Format) -> list[Path]:
    return [path.with_suffix(suffix) for suffix in format.companions]


def _article(title: str) -> str:
    return f"a{title[1:]}" if title.startswith("A ") else f"{title} data"
