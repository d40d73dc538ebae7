"""The formats of `keras_vitx.export`, one file each."""

import importlib.util
import os
from pathlib import Path

from keras_vitx.checks import check
from keras_vitx.export.formats import litert, onnx, openvino, saved_model, stablehlo, torch
from keras_vitx.export.graph import Format
from keras_vitx.text import needs_extra

FORMATS: dict[str, Format] = {
    each.FORMAT.name: each.FORMAT
    for each in (saved_model, onnx, openvino, litert, torch, stablehlo)
}
"""All formats, by name."""


def format_of(path: str | os.PathLike) -> Format:
    """Return the format of a path by its suffix; SavedModel if the suffix is unknown."""
    by_suffix = {each.suffix: each for each in FORMATS.values()}
    return by_suffix.get(Path(path).suffix.lower(), FORMATS["saved_model"])


def format_to_write(path: Path, name: str | None) -> Format:
    """Return a format by its name, or that of the suffix of a path; check that both agree."""
    if name is not None and name not in FORMATS:
        raise ValueError(f"`format` must be one of these. Received: {name!r}.\n{_table()}")
    found = format_of(path)
    format = FORMATS[name] if name else found
    expected = f"end in {format.suffix}" if format.suffix else "not end in another's suffix"
    rule = f"`path` must {expected} for the format {format.name!r}."
    check(format is found, rule, str(path))
    # A version, as in "photos-1.2", is no suffix.
    is_version = not any(map(str.isalpha, path.suffix))
    known = ", ".join(each.suffix for each in FORMATS.values() if each.suffix)
    rule = f"`path` must end in one of {known}, or without a suffix for a SavedModel (any name "
    check(name or format.suffix or is_version, f'{rule}with format="saved_model").', str(path))
    require(format)
    return format


def existing_format(path: Path, trust: bool) -> Format:
    """Return the format of an exported file; check that it may be opened and can be run."""
    format = format_of(path)
    if not path.exists() or not format.matches(path):
        raise FileNotFoundError(f"path: {str(path)!r} is not {format.title}, an exported file.")
    if format.risk and not trust:
        raise ValueError(
            f"{str(path)!r} must be a file that you trust to be opened: {format.title} can do more "
            f"than compute ({format.risk}). If it is yours, pass trust=True, or --trust."
        )
    require(format)
    format.check(path)
    return format


def require(format: Format) -> None:
    """Check that the packages of a format are installed, without importing them."""
    for package in format.needs:
        if importlib.util.find_spec(package) is None:
            message = f"The format {format.name!r} needs {package}, which is not installed"
            raise ImportError(needs_extra(message, format.extra))


def _table() -> str:
    """Return a plain-text table of the formats, their packages and their precisions."""
    rows = [("format", "suffix", "needs", "extra", "precisions")]
    for each in FORMATS.values():
        lists = ", ".join(each.needs), each.extra, ", ".join(each.precisions)
        rows.append((each.name, each.suffix or "(directory)", *lists))
    return "\n".join("{:13}{:13}{:39}{:10}{}".format(*row) for row in rows)
