"""The precisions that the weights of a file are stored in."""

import importlib.util
from typing import Any

from keras_vitx.export.formats import FORMATS
from keras_vitx.export.formats.base import Format
from keras_vitx.text import needs_extra

STATIC = "int8-static"


def check_precision(precision: str | None, format: Format, calibration: Any = None) -> None:
    """Check that a format is written in a precision, and that it gets images if it needs them.

    Raises:
        ValueError: if not; the message has the table of all formats.
        ImportError: if the package that quantizes the format's files is not installed.
    """
    if precision is not None and precision not in format.precisions:
        raise ValueError(
            f"precision: {precision!r} is not available for the format {format.name!r}. "
            f"The precisions are:\n{table()}\n"
            'A model that `model.quantize("int8")` has rounded is written as it is.'
        )
    if precision == STATIC and calibration is None:
        raise ValueError(
            f"precision={STATIC!r} needs calibration, a folder of images like those that the "
            "model will see, or an array of them."
        )
    if precision != STATIC and calibration is not None:
        raise ValueError(f"calibration is for precision={STATIC!r}, not {precision!r}.")
    package = format.quantizer
    if precision and "int" in precision and package and not importlib.util.find_spec(package):
        what = f"{format.title} in {precision} needs {package}, which is not installed"
        raise ImportError(needs_extra(what, package))


def table() -> str:
    """Return a plain-text table of the precisions of each format."""
    width = max(map(len, FORMATS))
    return "\n".join(
        f"{each.name.ljust(width)}  {', '.join(each.precisions)}" for each in FORMATS.values()
    )
