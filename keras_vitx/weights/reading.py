"""Reading weights files, one array at a time.

A file is checked before a library (safetensors, PyTorch with `weights_only=True`, h5py, zipfile)
reads it: no code in it runs, no other file is opened, and its size bounds the memory.
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import h5py
import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.text import needs_extra
from keras_vitx.weights.description import (
    CONFIG,
    KERAS_WEIGHTS,
    Description,
    FileError,
    from_config,
    from_metadata,
)
from keras_vitx.weights.names import weight_paths

# Prefixes that wrappers of PyTorch modules add to every name.
PREFIXES = ("module.", "model.", "_orig_mod.")

# Keys under which training scripts store the weights; averaged weights first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")


class StoredArray(NamedTuple):
    """An array of an open file, read on demand."""

    shape: tuple[int, ...]
    dtype: str  # In the spelling of the format.
    read: Callable[[], np.ndarray]


class WeightsFile(NamedTuple):
    """An open file of weights."""

    arrays: dict[str, StoredArray]
    description: Description | None = None
    native: bool = False  # Whether names and layouts are those of Keras, not of PyTorch.


def import_torch(task: str) -> ModuleType:
    """Return PyTorch; raise an ImportError that says which task needs it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(needs_extra(f"{task}, a PyTorch file, needs PyTorch", "torch")) from error
    return torch


def suffix_of(name: str) -> str | None:
    """Return the supported suffix of a file name, or None."""
    return next((suffix for suffix in READERS if name.endswith(suffix)), None)


@contextlib.contextmanager
def open_weights(path: Path, model, name: str | None = None) -> Iterator[WeightsFile]:
    """Open a weights file for a built model, checked so that `StoredArray.read` succeeds.

    The suffix of `name`, by default that of `path`, determines the format. Raises a ValueError
    if the file is damaged, of another format or holds anything but arrays, and an ImportError for a
    PyTorch file without PyTorch.
    """
    suffix = suffix_of(name or path.name)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        with _as_value_error(suffix):
            file = READERS[suffix](path, model, stack)
        if not file.arrays:
            raise ValueError("The file holds no arrays.")
        yield file if file.native else file._replace(arrays=_strip_prefixes(file.arrays))


@contextlib.contextmanager
def _as_value_error(suffix: str) -> Iterator[None]:
    """Re-raise whatever a library raises about a bad file as a ValueError."""
    try:
        yield
    except (ImportError, FileError):
        raise
    except Exception as error:
        raise ValueError(
            f"The file is damaged or not a {suffix} file ({_cause(error)})."
        ) from error


def _cause(error: Exception) -> str:
    line = str(error).split("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _strip_prefixes(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """Strip the prefixes that all names share."""
    while arrays:
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in arrays)), None)
        if prefix is None:
            break
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


def _read_safetensors(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    file = stack.enter_context(safe_open(path, framework="numpy"))
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        array = file.get_slice(name)
        read = partial(file.get_tensor, name)
        arrays[name] = StoredArray(tuple(array.get_shape()), array.get_dtype(), read)
    return WeightsFile(arrays, from_metadata(file.metadata()))


def _read_torch(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    torch = import_torch(f"Reading {path}")
    try:
        is_zip = _check_pickles(path)
        # Training scripts store their parsed arguments beside the weights. With mmap, arrays are
        # read from the disk on demand.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # The unpickler raises whatever a bad file provokes.
        raise FileError(
            "The file is refused: it is damaged, or holds Python objects other than tensors, "
            f"which could run code ({_cause(error)})."
        ) from error
    arrays, size = {}, path.stat().st_size
    for name, value in _state_dict(content).items():
        if (
            not isinstance(value, torch.Tensor)
            or (value.device.type, value.layout) != ("cpu", torch.strided)
            or value.is_nested
        ):
            raise FileError(
                f"The file is not a plain checkpoint (tensors by name): {name[:200]!r} is not a "
                f"plain tensor, but a {type(value).__name__}."
            )
        nbytes = value.untyped_storage().nbytes()
        # An expanded tensor repeats its storage; a damaged file declares more than it holds.
        if not value.numel() * value.element_size() <= nbytes <= size:
            raise FileError(
                f"The file is refused: it claims that {name[:200]!r} is {tuple(value.shape)} "
                f"and holds {nbytes} bytes of it in {size}."
            )
        # A copy: JAX would keep using the memory-mapped file.
        read = partial(value.detach().to, dtype=torch.float32, copy=True)
        dtype = str(value.dtype).removeprefix("torch.")
        arrays[name] = StoredArray(tuple(value.shape), dtype, lambda read=read: read().numpy())
    return WeightsFile(arrays)


def _check_pickles(path: Path) -> bool:
    """Check a PyTorch file before unpickling, and return whether it is a zip."""
    with path.open("rb") as file, contextlib.ExitStack() as stack:
        is_zip = file.read(4) == b"PK\3\4"
        file.seek(0)
        # Before PyTorch 1.6: a number, the version, the machine, the content, the names of arrays.
        pickles = [file] * 5
        if is_zip:
            archive = stack.enter_context(zipfile.ZipFile(file))
            # PyTorch stores members uncompressed, so they can't expand.
            for member in archive.infolist():
                if member.compress_type or member.file_size != member.compress_size:
                    raise ValueError(f"{member.filename[:200]!r} is compressed")
            if bad := archive.testzip():
                raise ValueError(f"the checksum of {bad[:200]!r} is wrong")
            pickles = [archive.open(name) for name in archive.namelist() if name.endswith(".pkl")]
        for content in pickles:
            # PyTorch checks all other names, but allows bytearrays of any length.
            if any(str(name).endswith(" bytearray") for _, name, _ in pickletools.genops(content)):
                raise ValueError("it names 'bytearray'")
    return is_zip


def _state_dict(content: Any) -> dict[str, Any]:
    # A limit on the depth, since a dictionary may contain itself.
    for _ in range(2 * len(WRAPPERS)):
        if not isinstance(content, dict):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(name): value for name, value in content.items()}
        content = inner
    kind = type(content).__name__
    raise FileError(f"The file is not a plain checkpoint (tensors by name): it holds a {kind}.")


def _read_weights_h5(source: Path | io.BytesIO, model, stack: contextlib.ExitStack) -> WeightsFile:
    # Keras numbers the variables of a layer in order.
    order: dict[str, list[str]] = {}
    for path in weight_paths(model):
        order.setdefault(path.rpartition("/")[0], []).append(path)
    arrays = {}
    for layer, number, array in stack.enter_context(open_checked_h5(source)):
        paths = order.get(layer, [])
        known = number.isdecimal() and int(number) < len(paths)
        # The states of random generators are integers, not weights.
        if known or array.dtype.kind not in "iu":
            name = paths[int(number)] if known else f"{layer}/{number}"
            is_bfloat16 = array.dtype == "V2" and array.attrs.get("dtype") == "bfloat16"
            dtype = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else array.dtype
            read = partial(lambda array, dtype: array[()].view(dtype), array, dtype)
            arrays[name] = StoredArray(array.shape, str(dtype), read)
    return WeightsFile(arrays, native=True)


def _read_keras(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    # Without building the model of the config, as Keras would.
    config, weights = _members(path)
    return _read_weights_h5(weights, model, stack)._replace(description=from_config(config))


READERS = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin", ".pth.tar"), _read_torch),
    ".weights.h5": _read_weights_h5,
    ".keras": _read_keras,
}


@contextlib.contextmanager
def open_checked_h5(source: Path | io.BytesIO) -> Iterator[list[tuple[str, str, h5py.Dataset]]]:
    """Open an HDF5 file that may hold only arrays, stored as by Keras.

    Yields (path of the layer, number, array) per variable. A bad file may raise any exception.
    """
    content = source.getbuffer() if isinstance(source, io.BytesIO) else np.memmap(source, mode="r")
    _check_heaps(content)
    with h5py.File(source, "r") as file:
        links: dict[str, Any] = {}
        file.visititems_links(links.__setitem__)
        for path, link in links.items():
            if not isinstance(link, h5py.HardLink):
                raise FileError(f"The file is refused: it holds a link, {path[:200]!r}.")
        # The root has the model's name, which is not part of the variable paths.
        names = {
            f"/{path}".removesuffix("/vars"): str(file[path].attrs.get("name", ""))
            for path in links
            if path.endswith("/vars")
        }
        arrays = []
        for path in links:
            if isinstance(file[path], h5py.Group):
                continue
            _check_array(file[path], len(content))
            layer, is_variable, number = f"/{path}".rpartition("/vars/")
            if is_variable and not path.startswith("optimizer/"):
                parents = itertools.accumulate(layer.split("/"), "{}/{}".format)
                name = "/".join(names[parent] for parent in parents if parent in names)
                arrays.append((name, number, file[path]))
        yield arrays


def _check_heaps(content: np.ndarray | memoryview) -> None:
    """Check the text heaps of an HDF5 file: HDF5 1.14 loops forever on an entry of length 0."""
    for match in re.finditer(rb"GCOL\x01", content):
        start = match.start()
        # A size below the minimum or beyond the end of the file is array data that matched by
        # chance, or an error that HDF5 detects.
        size = int.from_bytes(content[start + 8 : start + 16].tobytes(), "little")
        if not 4096 <= size <= len(content) - start:
            continue
        position, end = start + 16, start + size
        while position + 16 <= end:
            number, length = struct.unpack_from("<H6xQ", content, position)
            # Entry 0 is the free space at the end; its length includes its header.
            length = 16 + (length + 7) // 8 * 8 if number else length
            if not 0 < length <= end - position:
                raise ValueError("a heap of text is damaged")
            position += length


def _check_array(array: Any, size: int) -> None:
    """Check that an array is stored contiguously, as by Keras; others could declare any size."""
    start, item, dtype = array.id.get_offset(), array.dtype.itemsize, array.id.get_type()
    is_plain = array.dtype.kind == "V" or dtype == h5py.h5t.py_create(array.dtype)
    in_file = start is not None and start + math.prod(array.shape) * item <= size
    if not is_plain or not in_file or array.dtype.hasobject or dtype.get_size() != item:
        raise FileError(
            f"The file is refused: it claims that {array.name!r} is {array.shape}, "
            "and doesn't hold all of it as Keras stores it."
        )


def check_archive(path: Path) -> dict[str, Any]:
    """Check a `.keras` file before `keras.saving.load_model` reads it, and return its config.

    Keras accepts archives that expand to a hundred times their size, and weights files to a
    thousand. Raises a ValueError if the file is damaged, not a `.keras` file, or expands too far.
    """
    path.open("rb").close()  # Raises an OSError if the path is wrong.
    with _as_value_error(".keras"):
        config, weights = _members(path)
        with open_checked_h5(weights):
            return config


def _members(path: Path) -> tuple[dict[str, Any], io.BytesIO]:
    """Check the size of every member of an archive, and return the config and the weights."""
    # Keras does not compress archives, but repacked ones may be compressed.
    limit = 2 * path.stat().st_size + (1 << 20)
    contents = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name, size = info.filename[:200], info.file_size
            limit -= size
            if limit < 0 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FileError(
                    f"The file is refused: its {name} would expand to {size} bytes, too much for a "
                    "file of its size, or is compressed in an unusual way."
                )
            # zipfile would stop at the declared size, but Keras expands all of it.
            info.file_size += 1
            with archive.open(info) as member:
                content = member.read(size + 1)
            if len(content) != size:
                raise FileError(f"The file is damaged: its {name} does not have {size} bytes.")
            if name in (CONFIG, KERAS_WEIGHTS):
                contents[name] = content
    for name in (CONFIG, KERAS_WEIGHTS):
        if name not in contents:
            raise FileError(f"The file holds no {name}.")
    config = json.loads(contents[CONFIG])
    if not isinstance(config, dict):
        raise FileError(f"The file is damaged: its {CONFIG} holds a {type(config).__name__}.")
    return config, io.BytesIO(contents[KERAS_WEIGHTS])
