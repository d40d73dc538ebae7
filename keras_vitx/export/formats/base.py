"""What a format is, and what its writer is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import keras
import ml_dtypes
import numpy as np

INPUT = "images"
"""Name of the input in every format."""

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
"""The dtypes of half precision."""


@dataclass(frozen=True)
class Graph:
    """A model as a writer gets it.

    Attributes:
        model: The model, whose one input is a batch of images.
        outputs: Names of its outputs, in order.
        precision: Precision of the stored weights, one of `Format.precisions`, or None.
        others: The same network for other image sizes, by the name of their signatures.
        classes: Names of the classes, if the file is to have the signature of a server.
        top: Number of classes that this signature returns.
        calibration: Images of the file's input, from which ranges of activations are taken.
    """

    model: keras.Model
    outputs: tuple[str, ...]
    precision: str | None = None
    others: Mapping[str, keras.Model] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    top: int = 0
    calibration: np.ndarray | None = None

    def named(self, outputs) -> dict:
        """Return the outputs of the model by name."""
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: Name in the public API.
        title: Name in messages.
        suffix: Suffix of the file; "" for a folder.
        backend: The Keras backend that writes it.
        needs: Packages that write it and run it.
        extra: The extra of `pyproject.toml` that includes them.
        write: A function of a `Graph` and a path. It runs under `backend`.
        is_one: Whether a path holds this format, judged by its first bytes or its names.
        float32: Whether a model in mixed precision is written in float32.
        int8_weights: Whether the products of int8 layers are written in float32.
        any_size: Whether preprocessing inside the file takes images of any size.
        move: A function that puts a new file in the place of another; None is a rename.
        companions: Suffixes of files that belong to the one at the path.
        precisions: Precisions of weights that it is written in, besides the model's own.
        quantizer: The package that quantizes its files, if `needs` has none for it.
    """

    name: str
    title: str
    suffix: str
    backend: str
    needs: tuple[str, ...]
    extra: str
    write: Callable[[Graph, Path], None]
    is_one: Callable[[Path], bool]
    float32: bool = False
    int8_weights: bool = False
    any_size: bool = False
    move: Callable[[Path, Path], None] | None = None
    companions: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float16", "bfloat16")
    quantizer: str = ""


def starts_with(*beginnings: bytes, at: int = 0) -> Callable[[Path], bool]:
    """Return a function that tells whether a file has one of some bytes at an offset."""

    def is_one(path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return is_one


def halves(model: keras.Model, precision: str | None) -> dict[int, np.ndarray]:
    """Return the variables that half precision can hold, as arrays by `id`.

    Small ones, such as biases and scales, stay as they are: they take no space.
    """
    found = {}
    if precision not in HALVES:
        return found
    for variable in model.variables:
        if keras.backend.standardize_dtype(variable.dtype) != "float32":
            continue
        if len(variable.shape) < 2:
            continue
        with np.errstate(over="ignore"):
            values = keras.ops.convert_to_numpy(variable).astype(HALVES[precision])
        if np.isfinite(values.astype("float32")).all():
            found[id(variable)] = values
    return found
