"""The result of an export, and the JSON file that keeps it."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_vitx.export.formats.base import Format


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: The file or folder that was written.
        difference: Largest difference between its outputs and the model's, relative to the
            largest output; None if it was not verified.
        format: Name of the format.
        inputs: Shape and dtype of each input, by name; None is any size.
        outputs: Names of the outputs.
        classes: Names of the classes, in the order of the outputs; empty without a classifier.
        options: The options of the export that change the file.
        not_fused: Why the model could not be fused; None if it was, or was not to be.
        top1: Fraction of images with the same largest output; None without a classifier.
        latency_ms: Median time of one image in the format's runtime, in milliseconds.
        size: Bytes of the file, or of all files of the folder.
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


def record_of(path: Path, format: Format) -> Path:
    """Return the path of the record: `export.json` in a folder, else `<name>.json` beside it."""
    return path.with_name(f"{path.name}.json") if format.suffix else path / "export.json"


def write_record(exported: Exported, path: Path, format: Format) -> None:
    """Write the record of the file at `path`, with its hash, by which `read_record` knows it.

    `Exported.path` is left out, since the file may be moved.
    """
    described = {**asdict(exported), "sha256": _sha256(path)}
    del described["path"]
    record_of(path, format).write_text(json.dumps(described, indent=1) + "\n")


def read_record(path: Path, format: Format) -> dict[str, Any]:
    """Return the record of a file, or an empty one if there is none of it that can be read."""
    try:
        found = json.loads(record_of(path, format).read_text())
        is_its_own = found["sha256"] == _sha256(path)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if is_its_own else {}


def _sha256(path: Path) -> str:
    """Return the hash of a file, or of the graph in the folder of a SavedModel."""
    with (path / "saved_model.pb" if path.is_dir() else path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path, format: Format) -> int:
    """Return the bytes of a file with its companions, or of all files in a folder."""
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    files = files or [path, *(path.with_suffix(each) for each in format.companions)]
    return sum(file.stat().st_size for file in files)
