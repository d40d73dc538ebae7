"""Keras weights files (`.weights.h5`, and the one in a `.keras` archive): HDF5."""

import contextlib
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from keras_vitx.weights.description import Description
from keras_vitx.weights.reading.tensors import Refused, Tensors


@contextlib.contextmanager
def read_weights_h5(path: Path, model) -> Iterator[Tensors]:
    """Open a `.weights.h5` file."""
    yield tensors_of(path, np.memmap(path, "uint8", "r"), model)


def check_h5(source: Path | io.BytesIO, content: np.ndarray) -> None:
    """Check that an HDF5 file holds nothing but arrays stored as Keras stores them.

    Arrays are then views of the bytes of the file, and reading them takes no more memory
    than the size of the file.

    Args:
        source: The file, for h5py.
        content: Its bytes.

    Raises:
        Exception: of any kind, when something is wrong with the file.
    """
    _check_heaps(content)
    with h5py.File(source, "r") as file:
        for dataset in _datasets(file, set()):
            _in_place(dataset, content)


def tensors_of(
    source: Path | io.BytesIO, content: np.ndarray, model, description: Description | None = None
) -> Tensors:
    """Return the arrays of a Keras weights file under the paths of a model's variables.

    Args:
        source: The file, for h5py.
        content: Its bytes.
        model: The model that the weights are for.
        description: Description of the file's model, if any.

    Raises:
        Exception: of any kind, when something is wrong with the file.
    """
    check_h5(source, content)
    # Keras numbers the variables of a layer in order.
    order: dict[str, list[str]] = {}
    for variable in model.weights:
        order.setdefault(variable.path.rpartition("/")[0], []).append(variable.path)
    arrays, dtypes = {}, {}
    with h5py.File(source, "r") as file:
        for layer, number, dataset in _layer_arrays(file):
            paths = order.get(layer, [])
            known = number.isdecimal() and int(number) < len(paths)
            # The states of random generators are integers, not weights.
            if not known and dataset.dtype.kind in "iu":
                continue
            name = paths[int(number)] if known else f"{layer}/{number}"
            arrays[name] = _in_place(dataset, content)
            dtypes[name] = str(arrays[name].dtype)
    return Tensors(
        shapes={name: array.shape for name, array in arrays.items()},
        dtypes=dtypes,
        read=lambda name: arrays[name].astype("float32"),
        native=True,
        description=description,
    )


def _check_heaps(content: np.ndarray) -> None:
    """Check the heaps in which an HDF5 file stores text, such as layer names.

    HDF5 1.14 loops forever on a heap that has an entry of length 0.
    """
    for found in re.finditer(rb"GCOL\x01", content):
        start = found.start()
        size = int.from_bytes(content[start + 8 : start + 16].tobytes(), "little")
        # 4096 is the minimum size of a heap. A size beyond the end of the file is either
        # array data that matched by chance or an error that HDF5 detects.
        if not 4096 <= size <= len(content) - start:
            continue
        place, end = start + 16, start + size
        while place + 16 <= end:
            header = content[place : place + 16].tobytes()
            # Entry 0 is the free space at the end; its length includes its header.
            length = int.from_bytes(header[8:], "little")
            if header[:2] != b"\0\0":
                length = 16 + (length + 7) // 8 * 8
            if not 0 < length <= end - place:
                raise ValueError("a heap of text is damaged")
            place += length


def _datasets(group: h5py.Group, seen: set[int]) -> Iterator[h5py.Dataset]:
    """Yield every dataset under a group."""
    for key in group:
        child = _child(group, key, seen)
        if isinstance(child, h5py.Group):
            yield from _datasets(child, seen)
        elif isinstance(child, h5py.Dataset):
            yield child
        else:
            raise Refused(f"The file is no Keras weights file: {child.name!r} is no array.")


def _child(group: h5py.Group, key: str, seen: set[int]) -> Any:
    """Return a direct child of a group. Links are refused: they may be cyclic or leave the file."""
    child = group[key] if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
    address = None if child is None else h5py.h5o.get_info(child.id).addr
    if address is None or address in seen:
        raise Refused(f"The file is refused: it holds a link, {key[:200]!r}.")
    seen.add(address)
    return child


def _layer_arrays(
    group: h5py.Group, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, h5py.Dataset]]:
    """Yield (layer path, variable number, dataset) of a checked weights file."""
    own = group.get("vars")
    if own is not None and not isinstance(own, h5py.Group):
        raise Refused(f"The file is no Keras weights file: {own.name!r} is an array.")
    # The root has the model's name, which is not part of the variable paths.
    if own is not None and group.name != "/":
        names = (*names, str(own.attrs.get("name", "")))
    for number in own or ():
        if not isinstance(own[number], h5py.Dataset):
            raise Refused(f"The file is no Keras weights file: {own[number].name!r} is no array.")
        yield "/".join(names), number, own[number]
    for key in group:
        is_optimizer = group.name == "/" and key == "optimizer"
        if key != "vars" and not is_optimizer and isinstance(group[key], h5py.Group):
            yield from _layer_arrays(group[key], names)


def _in_place(dataset: h5py.Dataset, content: np.ndarray) -> np.ndarray:
    """Return an array as a view of the file's bytes.

    Keras stores arrays as they are in memory. A compressed, chunked or unallocated array
    could claim any size, and is refused.
    """
    stored = dataset.id.get_type()
    dtype = dataset.dtype
    as_written = dtype.kind == "V" or stored == h5py.h5t.py_create(dtype)
    if dtype == "V2" and dataset.attrs.get("dtype") == "bfloat16":
        dtype = np.dtype(ml_dtypes.bfloat16)
    if not as_written or stored.get_size() != dtype.itemsize or dtype.hasobject:
        raise Refused(f"The file is refused: {dataset.name!r} is no array as Keras stores it.")
    start, nbytes = dataset.id.get_offset(), math.prod(dataset.shape) * dtype.itemsize
    if start is None or not 0 <= start <= start + nbytes <= len(content):
        raise Refused(
            f"The file is refused: it claims that {dataset.name!r} is {dataset.shape}, "
            "and doesn't hold all of it as Keras stores it."
        )
    return content[start : start + nbytes].view(dtype).reshape(dataset.shape)
