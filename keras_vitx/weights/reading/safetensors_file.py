"""`.safetensors` files: a JSON header and the bytes of each array."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from keras_vitx.weights.description import Description
from keras_vitx.weights.reading.tensors import Tensors, describing, without_prefixes


@contextlib.contextmanager
def read_safetensors(path: Path, model) -> Iterator[Tensors]:
    """Open a `.safetensors` file."""
    with safe_open(path, framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        names = without_prefixes(slices)
        with describing("metadata"):
            description = Description.from_metadata(file.metadata())
        yield Tensors(
            shapes={name: tuple(slices[old].get_shape()) for name, old in names.items()},
            dtypes={name: slices[old].get_dtype() for name, old in names.items()},
            read=lambda name: file.get_tensor(names[name]).astype("float32"),
            description=description,
        )
