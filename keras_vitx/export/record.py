"""The record of an export, and atomic writes of a file with its record."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_vitx.checks import check
from keras_vitx.export.graph import Format
from keras_vitx.files import check_writable, move, remove_stale, temporary_beside

WRITTEN = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
"""What TensorFlow writes into the directory of a SavedModel."""

ADDED = ("export.json", "assets.extra", "keras_metadata.pb", "debug")
"""What else belongs there: the record, a server's requests to warm up, files of older versions."""

SYSTEM = (".DS_Store", "._*", ".nfs*", "Thumbs.db", "desktop.ini")
"""What operating systems put into any directory."""


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: The file or directory that was written.
        difference: Largest difference between its outputs and the model's, relative to the
            largest output; None if it was not verified.
        format: Name of the format.
        inputs: Shape and dtype of each input, by name; None is any size. `preprocessing` is what
            images need before, if it is not in the file.
        outputs: Names of the outputs.
        classes: Names of the classes, in the order of the outputs; empty without a classifier. One
            sigmoid output has two, and is the probability of the second one.
        options: The arguments of the export that change the file.
        not_fused: Why the model could not be fused; None if it was, or with `fuse=False`.
        top1: Fraction of images with the same largest output; None without a classifier.
        latency_ms: Median time of one image in the format's runtime, in milliseconds.
        size: Bytes of the file, or of all files of the directory.
        seconds: Seconds of each stage.
        versions: Versions of the packages that wrote the file and ran it.
    """

    path: Path
    difference: float | None
    format: str = "saved_model"
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    not_fused: str | None = None
    top1: float | None = None
    latency_ms: float | None = None
    size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def record_path(path: Path, format: Format) -> Path:
    """Return the path of the record: `export.json` in a directory, else `<name>.json` beside it."""
    return path.with_name(f"{path.name}.json") if format.suffix else path / "export.json"


def write_record(exported: Exported, path: Path, format: Format) -> None:
    """Write a record, with a hash for `read_record` and without the path, which may change."""
    record = asdict(exported)
    del record["path"]
    record["digest"] = _digest(path, format, record)
    record_path(path, format).write_text(json.dumps(record, indent=1) + "\n")


def read_record(path: Path, format: Format) -> dict[str, Any]:
    """Return the record of a file; an empty one if it is missing, damaged or of another file."""
    try:
        record = json.loads(record_path(path, format).read_text())
        matches = record.pop("digest") == _digest(path, format, record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return record if matches else {}


def _digest(path: Path, format: Format, record: dict[str, Any]) -> str:
    """Return a hash of the content of a record and of every file that it describes."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for each in files_of(path, format):
        with each.open("rb") as file:
            name = each.suffix if format.suffix else str(each.relative_to(path))
            digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()


def files_of(path: Path, format: Format) -> list[Path]:
    """Return a file and its companion, or all files of a directory that the format wrote."""
    if format.suffix:
        return [path, path.with_suffix(format.companion)] if format.companion else [path]
    inside = [each for name in WRITTEN for each in (path / name, *(path / name).rglob("*"))]
    return sorted(each for each in inside if each.is_file() and not _is_of_the_system(each))


def _is_of_the_system(path):
    return any(map(path.match, SYSTEM))


def check_destination(path: Path, format: Format, overwrite: bool = False) -> None:
    """Check that a file of the format may be written to `path`."""
    check(path.name, "`path` must be the name of a file or directory.", str(path))
    check_writable(path)
    remove_stale(path)
    if not path.exists() and not path.is_symlink():
        companion = path.with_suffix(format.companion)
        # With a record, a killed export left it.
        if format.companion and companion.exists() and not record_path(path, format).exists():
            raise FileExistsError(
                f"path: {str(companion)!r} exists, where {format.title} would be written."
            )
        return
    own = path.is_file() if format.suffix else path.is_dir()
    if own and not format.suffix:
        inside = {each.name for each in path.iterdir() if not _is_of_the_system(each)}
        own = inside <= {*WRITTEN, *ADDED}
    if path.is_symlink() or not own or not format.matches(path):
        raise FileExistsError(
            f"path: {str(path)!r} exists and holds other things than {format.title}; "
            "choose a new path."
        )
    if not overwrite:
        raise FileExistsError(
            f"path: {str(path)!r} already holds {format.title}; overwrite=True replaces it."
        )


@contextlib.contextmanager
def atomic_export(path: Path, format: Format) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move the file and its record to `path` at the end.

    If the weights are a second file, the old graph is removed first and the new one comes last, so
    that a kill in between leaves no graph, rather than one with the weights of another.
    """
    with temporary_beside(path) as temporary:
        yield temporary
        if format.suffix:
            record_path(temporary, format).replace(record_path(path, format))
        elif (path / "assets.extra").is_dir():
            shutil.copytree(path / "assets.extra", temporary / "assets.extra")
        if format.companion:
            if path.exists():
                path.replace(temporary.with_name("old"))
            temporary.with_suffix(format.companion).replace(path.with_suffix(format.companion))
        move(temporary, path)
