"""Figures as files, which a notebook shows; an ImportError without matplotlib."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from keras_vitx.files import atomic_write
from keras_vitx.text import needs_extra

WEIGHTS, SIGNED = "viridis", "RdBu_r"
"""The palettes of figures and page: of weights, and of what has both signs."""


class Picture(type(Path())):
    """The path of a picture, which a notebook shows (PNG, SVG and JPEG)."""

    def _repr_mimebundle_(self, **kwargs):
        if self.suffix.lower() == ".svg":
            return {"image/svg+xml": self.read_text("utf-8")}
        kind = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
        kind = kind.get(self.suffix.lower())
        return {kind: self.read_bytes()} if kind else {"text/plain": repr(self)}


def block_label(name: str) -> str:
    """Return "block 3" for `blocks_3`, and "class attention 1" for `blocks_token_only_1`."""
    name = name.replace("blocks_token_only", "class attention").replace("blocks", "block")
    return name.replace("transformers", "stage").replace("_block", ", block").replace("_", " ")


@contextmanager
def drawing(
    path: str | os.PathLike,
    shape: tuple[int, int] = (1, 1),
    cell: tuple[float, float] = (4.0, 3.0),
    dpi: int = 100,
) -> Iterator[np.ndarray]:
    """Yield the axes of a figure, `(rows, columns)`, and write it to `path` at the end.

    The suffix selects the format; `cell` is the size of each of the axes in inches. Raises an
    ImportError if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error
    rows, columns = shape
    figure = Figure((columns * cell[0], rows * cell[1]), layout="constrained")
    yield figure.subplots(rows, columns, squeeze=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=dpi)
