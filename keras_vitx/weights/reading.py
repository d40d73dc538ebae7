"""Reading weights files, one array at a time.

The libraries of the formats read: safetensors, PyTorch (`weights_only=True`), h5py and
zipfile. Before, each file is checked for what they would follow, run or expand: no code in a
file runs, no other file is opened, and memory is bounded by the size of the file.
"""

import argparse
import contextlib
import copy
import io
import json
import math
import os
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.text import needs_extra
from keras_vitx.weights.description import Description

# Floating-point types, as NumPy, PyTorch, Keras and safetensors spell them.
FLOATING = {"bfloat16", "float16", "float32", "float64", "bf16", "f16", "f32", "f64"}

# Prefixes that wrappers of PyTorch modules add to every name.
PREFIXES = ("module.", "model.", "_orig_mod.")

# Keys under which training scripts store the weights; averaged weights first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")

# Files from before PyTorch 1.6 begin with this pickled number.
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# Members of a `.keras` file.
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


class Refused(ValueError):
    """The file has the right format but is not accepted; the message says why."""


@dataclass(frozen=True)
class Tensors:
    """The arrays of an opened file.

    Attributes:
        shapes: Shape of every array, by name.
        dtypes: Data type of every array, by name, as the file's format spells it.
        read: A function from a name to its array, as float32.
        native: Whether names and layouts are those of Keras variables rather than
            those of a PyTorch checkpoint.
        description: The description of the model in the file, if any.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    read: Callable[[str], np.ndarray]
    native: bool = False
    description: Description | None = None

    def is_floating(self, name: str) -> bool:
        """Return whether an array holds floating-point numbers, as weights do."""
        return self.dtypes[name].removeprefix("torch.").lower() in FLOATING


def suffix_of(path: Path) -> str | None:
    """Return the supported suffix of a path, or None if it has another one."""
    return next((suffix for suffix in KINDS if path.name.endswith(suffix)), None)


@contextlib.contextmanager
def open_weights(
    path: Path, model, description: Description | None = None, kind: str | None = None
) -> Iterator[Tensors]:
    """Open a weights file for a model.

    All errors in the file are detected here, so that `Tensors.read` succeeds.

    Args:
        path: The file.
        model: The built model that the weights are for.
        description: Description of the file's model, which overrides the one in the file.
        kind: One of `KINDS`; None for the suffix of the path.

    Raises:
        ValueError: if the file is damaged, is not in the format of its suffix, or holds
            anything but arrays.
        ImportError: if a PyTorch file is given and PyTorch isn't installed.
    """
    kind = kind or suffix_of(path)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        try:
            tensors = stack.enter_context(KINDS[kind](path, model))
        except (ImportError, Refused):
            raise
        except Exception as error:  # The readers raise whatever a bad file provokes.
            raise ValueError(f"The file is damaged or no {kind} file ({cause(error)}).") from error
        if not tensors.shapes:
            raise ValueError("The file holds no arrays.")
        yield replace(tensors, description=description) if description else tensors


def cause(error: Exception) -> str:
    """Return a library's error in one line of limited length."""
    line = str(error).split("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


@contextlib.contextmanager
def describing(part: str) -> Iterator[None]:
    """Re-raise errors about a description as `Refused`, naming the part of the file."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"The file's {part} can't be used: {error}") from error


def _without_prefixes(names) -> dict[str, str]:
    """Map each name, stripped of the prefixes that all names share, to the full name."""
    stripped = {name: name for name in names}
    while stripped:
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in stripped)), None)
        if prefix is None:
            break
        stripped = {name.removeprefix(prefix): old for name, old in stripped.items()}
    return stripped


@contextlib.contextmanager
def _read_safetensors(path: Path, model) -> Iterator[Tensors]:
    with safe_open(path, framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        names = _without_prefixes(slices)
        with describing("metadata"):
            description = Description.from_metadata(file.metadata())
        yield Tensors(
            shapes={name: tuple(slices[old].get_shape()) for name, old in names.items()},
            dtypes={name: slices[old].get_dtype() for name, old in names.items()},
            read=lambda name: file.get_tensor(names[name]).astype("float32"),
            description=description,
        )


@contextlib.contextmanager
def _read_torch(path: Path, model) -> Iterator[Tensors]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            needs_extra(f"Reading {path}, a PyTorch file, needs PyTorch", "torch")
        ) from error
    try:
        is_zip = _check_pickles(path)
        # Training scripts store their parsed arguments beside the weights. With
        # mmap, arrays are read from the disk on demand.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # The unpickler raises whatever a bad file provokes.
        raise Refused(
            "The file is refused: it is damaged, or holds Python objects other than tensors, "
            f"which could run code when read ({cause(error)})."
        ) from error
    tensors = {}
    for name, value in _state_dict(content).items():
        if not isinstance(value, torch.Tensor):
            raise Refused(
                f"The file is no plain checkpoint (tensors by name): {name[:200]!r} is "
                f"a {type(value).__name__}."
            )
        tensors[name] = value.detach()
        _check_tensor(name, value, path.stat().st_size)
    names = _without_prefixes(tensors)
    yield Tensors(
        shapes={name: tuple(tensors[old].shape) for name, old in names.items()},
        dtypes={name: str(tensors[old].dtype) for name, old in names.items()},
        # A copy: JAX would keep using the memory-mapped file.
        read=lambda name: tensors[names[name]].to(dtype=torch.float32, copy=True).numpy(),
    )


def _check_pickles(path: Path) -> bool:
    """Check a PyTorch file before it is unpickled, and return whether it is a zip.

    Raises:
        Exception: of any kind, when something is wrong with the file.
    """
    with path.open("rb") as file, contextlib.ExitStack() as stack:
        start = file.read(len(OLD_MAGIC))
        if start == OLD_MAGIC:
            # The version, a note about the machine, the content.
            pickles = [file] * 3
        elif start.startswith(b"PK\3\4"):
            archive = stack.enter_context(zipfile.ZipFile(file))
            # PyTorch stores members uncompressed, so they can't expand.
            for member in archive.infolist():
                if member.compress_type or member.file_size != member.compress_size:
                    raise ValueError(f"{member.filename[:200]!r} is compressed")
            if bad := archive.testzip():
                raise ValueError(f"the checksum of {bad[:200]!r} is wrong")
            pickles = [archive.open(name) for name in archive.namelist() if name.endswith(".pkl")]
        else:
            raise ValueError("neither of PyTorch's formats")
        for content in pickles:
            # PyTorch allows it, of any length; all other names it checks itself.
            if any(str(name).endswith(" bytearray") for _, name, _ in pickletools.genops(content)):
                raise ValueError("it names 'bytearray'")
    return start != OLD_MAGIC


def _state_dict(content: Any) -> dict[str, Any]:
    # Limited in depth, since a dictionary may contain itself.
    for _ in range(2 * len(WRAPPERS)):
        if not isinstance(content, dict):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(name): value for name, value in content.items()}
        content = inner
    raise Refused(
        f"The file is no plain checkpoint (tensors by name): it holds a {type(content).__name__}."
    )


def _check_tensor(name: str, tensor, size: int) -> None:
    """Check that a tensor is plain, and that a file of `size` bytes can hold its values."""
    known = tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided"
    if not known or tensor.is_nested or tensor.is_quantized or tensor.is_neg() or tensor.is_conj():
        raise Refused(f"The file is no plain checkpoint: {name[:200]!r} is no plain tensor.")
    stored = tensor.untyped_storage().nbytes()
    if not tensor.numel() * tensor.element_size() <= stored <= size:
        raise Refused(
            f"The file is refused: it claims that {name[:200]!r} is {tuple(tensor.shape)} "
            f"and holds {stored} bytes of it in {size}."
        )


@contextlib.contextmanager
def _read_weights_h5(
    source: Path | io.BytesIO, model, description: Description | None = None
) -> Iterator[Tensors]:
    """Open the arrays of a Keras weights file under the paths of a model's variables."""
    # Keras numbers the variables of a layer in order.
    order: dict[str, list[str]] = {}
    for variable in model.weights:
        order.setdefault(variable.path.rpartition("/")[0], []).append(variable.path)
    arrays = {}
    with open_checked_h5(source) as found:
        for layer, number, array in found:
            paths = order.get(layer, [])
            known = number.isdecimal() and int(number) < len(paths)
            # The states of random generators are integers, not weights.
            if known or array.dtype.kind not in "iu":
                arrays[paths[int(number)] if known else f"{layer}/{number}"] = array
        yield Tensors(
            shapes={name: array.shape for name, array in arrays.items()},
            dtypes={name: str(_dtype(array)) for name, array in arrays.items()},
            read=lambda name: arrays[name][()].view(_dtype(arrays[name])).astype("float32"),
            native=True,
            description=description,
        )


@contextlib.contextmanager
def _read_keras(path: Path, model) -> Iterator[Tensors]:
    """Open a `.keras` file, without building the model of its config as Keras would."""
    config, weights = _members(path)
    with describing(CONFIG):
        description = Description.from_config(config)
    with _read_weights_h5(weights, model, description) as tensors:
        yield tensors


KINDS = {
    ".safetensors": _read_safetensors,
    ".pth": _read_torch,
    ".pt": _read_torch,
    ".bin": _read_torch,
    ".pth.tar": _read_torch,
    ".weights.h5": _read_weights_h5,
    ".keras": _read_keras,
}


@contextlib.contextmanager
def open_checked_h5(source: Path | io.BytesIO) -> Iterator[list[tuple[str, str, h5py.Dataset]]]:
    """Open an HDF5 file that holds nothing but arrays stored as Keras stores them.

    Yields the path of the layer, the number and the array of each of the layers' variables.

    Raises:
        Exception: of any kind, when something is wrong with the file.
    """
    is_path = isinstance(source, Path)
    content = np.memmap(source, "uint8", "r") if is_path else source.getbuffer()
    _check_heaps(content)
    with h5py.File(source, "r") as file:
        yield [each for each in _arrays(file, len(content), set()) if each[0] is not None]


def _check_heaps(content: np.ndarray | memoryview) -> None:
    """Check the heaps in which an HDF5 file stores text, such as layer names.

    HDF5 1.14 loops forever on a heap that has an entry of length 0.
    """
    for found in re.finditer(rb"GCOL\x01", content):
        start = found.start()
        size = int.from_bytes(bytes(content[start + 8 : start + 16]), "little")
        # 4096 is the minimum size of a heap. A size beyond the end of the file is either
        # array data that matched by chance or an error that HDF5 detects.
        if not 4096 <= size <= len(content) - start:
            continue
        position, end = start + 16, start + size
        while position + 16 <= end:
            header = bytes(content[position : position + 16])
            # Entry 0 is the free space at the end; its length includes its header.
            length = int.from_bytes(header[8:], "little")
            if header[:2] != b"\0\0":
                length = 16 + (length + 7) // 8 * 8
            if not 0 < length <= end - position:
                raise ValueError("a heap of text is damaged")
            position += length


def _arrays(
    group: h5py.Group, size: int, seen: set[int], layer: str | None = ""
) -> Iterator[tuple[str | None, str, h5py.Dataset]]:
    """Yield (path of the layer, number, array) of a file of `size` bytes; None for no layer."""
    children = {key: _child(group, key, seen) for key in group}
    own = children.get("vars")
    # The root has the model's name, which is not part of the variable paths.
    if isinstance(own, h5py.Group) and group.name != "/" and layer is not None:
        layer = f"{layer}/{own.attrs.get('name', '')}".removeprefix("/")
    in_vars = group.name.rpartition("/")[2] == "vars"
    for key, child in children.items():
        if isinstance(child, h5py.Group) and not in_vars:
            is_optimizer = group.name == "/" and key == "optimizer"
            yield from _arrays(child, size, seen, None if is_optimizer else layer)
        elif isinstance(child, h5py.Dataset) and key != "vars":
            _check_array(child, size)
            yield layer if in_vars else None, key, child
        else:
            raise Refused(f"The file is no Keras weights file: {child.name!r} is out of place.")


def _child(group: h5py.Group, key: str, seen: set[int]) -> Any:
    """Return a direct child of a group. Links are refused: they may be cyclic or leave the file."""
    child = group[key] if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
    address = None if child is None else h5py.h5o.get_info(child.id).addr
    if address is None or address in seen:
        raise Refused(f"The file is refused: it holds a link, {key[:200]!r}.")
    seen.add(address)
    return child


def _check_array(array: h5py.Dataset, size: int) -> None:
    """Check that a file of `size` bytes holds an array in one piece, as Keras writes it.

    A compressed, chunked, external or unallocated array could claim any size.
    """
    start, nbytes = array.id.get_offset(), math.prod(array.shape) * array.dtype.itemsize
    stored = array.id.get_type()
    as_written = array.dtype.kind == "V" or stored == h5py.h5t.py_create(array.dtype)
    in_file = start is not None and 0 <= start <= start + nbytes <= size
    if (
        not as_written
        or not in_file
        or array.dtype.hasobject
        or stored.get_size() * (math.prod(array.shape)) != nbytes
    ):
        raise Refused(
            f"The file is refused: it claims that {array.name!r} is {array.shape}, "
            "and doesn't hold all of it as Keras stores it."
        )


def _dtype(array: h5py.Dataset) -> np.dtype:
    is_bfloat16 = array.dtype == "V2" and array.attrs.get("dtype") == "bfloat16"
    return np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else array.dtype


def check_archive(path: str | os.PathLike) -> dict[str, Any]:
    """Check a `.keras` file before passing it to `keras.saving.load_model`.

    Keras accepts archives that expand to a hundred times their size and weights files that
    expand to a thousand times theirs. A file that passes this check takes memory in
    proportion to its size.

    Args:
        path: The file.

    Returns:
        The config in the archive.

    Raises:
        ValueError: if the file is damaged, is not a `.keras` file, or expands to more than
            Keras would have written.
        OSError: if it can't be read.
    """
    path = Path(path).expanduser()
    try:
        config, weights = _members(path)
        with open_checked_h5(weights):
            return config
    except Refused as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # The readers raise whatever a bad file provokes.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path}: The file is damaged or no .keras file ({cause(error)}).") from (
            error
        )


def _members(path: Path) -> tuple[dict[str, Any], io.BytesIO]:
    """Return the config and the weights of an archive, having checked the size of every member."""
    # Keras does not compress archives, but repacked ones may be compressed.
    limit = 2 * path.stat().st_size + (1 << 20)
    contents = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename[:200]
            limit -= info.file_size
            if limit < 0:
                raise Refused(
                    f"The file is refused: its {name} would expand to {info.file_size} bytes, "
                    "which is too much for a file of its size."
                )
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Refused(f"The file is refused: its {name} is compressed in an unusual way.")
            # zipfile cuts data off at the declared size, but only after expanding all of it.
            one_more = copy.copy(info)
            one_more.file_size += 1
            with archive.open(one_more) as member:
                content = member.read(one_more.file_size)
            if len(content) != info.file_size:
                raise Refused(
                    f"The file is damaged: its {name} does not have the {info.file_size} bytes "
                    "that it declares."
                )
            if info.filename in (CONFIG, WEIGHTS):
                contents[info.filename] = content
    for name in (CONFIG, WEIGHTS):
        if name not in contents:
            raise Refused(f"The file holds no {name}.")
    config = json.loads(contents[CONFIG])
    if not isinstance(config, dict):
        raise Refused(f"The file is damaged: its {CONFIG} holds a {type(config).__name__}.")
    return config, io.BytesIO(contents[WEIGHTS])
