"""The formats of `keras_vitx.export`, one file each."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_vitx.checks import check
from keras_vitx.export.formats import onnx, saved_model, torch
from keras_vitx.text import needs_extra


class Format(NamedTuple):
    """A file format."""

    name: str
    suffix: str  # "" for a directory.
    backend: str  # The Keras backend under which `write` runs.
    write: Callable  # Of the model, the names of its outputs, and the path.
    extra: str  # The extra of this package that installs `packages`.
    packages: tuple[str, ...]  # Those that write it, and last the one that runs it.
    any_size: bool  # Whether preprocessing inside the file takes images of any size.


ROWS = (
    Format("saved_model", "", "tensorflow", saved_model.write, "export", ("tensorflow",), True),
    Format("onnx", ".onnx", "torch", onnx.write, "onnx", ("onnxscript", "onnxruntime"), True),
    Format("torch", ".pt2", "torch", torch.write, "torch", ("torch",), False),
)
FORMATS = {row.name: row for row in ROWS}
"""All formats, by name."""


def format_of(path: Path, name: str | None) -> Format:
    """Return a format by its name, or, for None, by the suffix of a path."""
    # A version, as in "photos-1.2", is no suffix.
    suffix = path.suffix.lower() if any(map(str.isalpha, path.suffix)) else ""
    format = {row.suffix: row for row in ROWS}.get(suffix) if name is None else FORMATS.get(name)
    rule = f"`format` must be one of {', '.join(FORMATS)}, or None and a `path` with its suffix."
    check(format is not None, rule, (name, str(path)))
    for package in format.packages:
        if importlib.util.find_spec(package) is None:
            message = f"The format {format.name!r} needs {package}, which is not installed"
            raise ImportError(needs_extra(message, format.extra))
    return format


def write_class_names(path: Path, format: Format, names: Sequence[str]) -> None:
    """Write names as JSON: ONNX's metadata `class_names`, a file of a SavedModel's extra assets."""
    text = json.dumps(names)
    if format is FORMATS["saved_model"]:
        (path / "assets.extra").mkdir()
        (path / "assets.extra" / "class_names.json").write_text(text)
    elif format is FORMATS["onnx"]:
        import onnx as library

        proto = library.load(path)
        proto.metadata_props.add(key="class_names", value=text)
        library.save(proto, path)
