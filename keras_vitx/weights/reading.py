"""Reading weights files, one array at a time.

Before a library (safetensors, PyTorch with `weights_only=True`, h5py, zipfile) reads a file, it is
checked: no code in it runs, no other file is opened, and its size bounds the memory.
"""

import argparse
import contextlib
import io
import itertools
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
from keras_vitx.weights.description import CONFIG, Description, Refused

WEIGHTS = "model.weights.h5"  # in a `.keras` file, beside CONFIG

# Floating-point types, as NumPy, PyTorch, Keras and safetensors spell them.
FLOATING = {"bfloat16", "float16", "float32", "float64", "bf16", "f16", "f32", "f64"}

# Prefixes that wrappers of PyTorch modules add to every name.
PREFIXES = ("module.", "model.", "_orig_mod.")

# Keys under which training scripts store the weights; averaged weights first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")

# Files from before PyTorch 1.6 begin with this pickled number.
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


@dataclass(frozen=True)
class Tensors:
    """The arrays of an opened file, by name."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]  # As the file's format spells them.
    read: Callable[[str], np.ndarray]  # Returns float32.
    native: bool = False  # Whether names and layouts are those of Keras, not of PyTorch.
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
    """Open a weights file for a built model, checked so that `Tensors.read` succeeds.

    `description` overrides the one in the file, and `kind`, one of `KINDS`, the suffix of the path.
    Raises a ValueError if the file is damaged, of another format or holds anything but arrays, and
    an ImportError for a PyTorch file without PyTorch.
    """
    kind = kind or suffix_of(path)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        with _one_error(kind):
            tensors = stack.enter_context(KINDS[kind](path, model))
        if not tensors.shapes:
            raise ValueError("The file holds no arrays.")
        yield replace(tensors, description=description) if description else tensors


@contextlib.contextmanager
def _one_error(kind: str) -> Iterator[None]:
    """Re-raise whatever a library raises about a bad file as one error."""
    try:
        yield
    except (ImportError, Refused):
        raise
    except Exception as error:
        raise ValueError(f"The file is damaged or no {kind} file ({_cause(error)}).") from error


def _cause(error: Exception) -> str:
    line = str(error).split("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


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
        yield Tensors(
            shapes={name: tuple(slices[old].get_shape()) for name, old in names.items()},
            dtypes={name: slices[old].get_dtype() for name, old in names.items()},
            read=lambda name: file.get_tensor(names[name]).astype("float32"),
            description=Description.from_metadata(file.metadata()),
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
            f"which could run code when read ({_cause(error)})."
        ) from error
    tensors = _state_dict(content)
    size = path.stat().st_size
    for name, value in tensors.items():
        if (
            not isinstance(value, torch.Tensor)
            or (value.device.type, value.layout) != ("cpu", torch.strided)
            or value.is_nested
            or value.is_quantized
        ):
            raise Refused(
                f"The file is no plain checkpoint (tensors by name): {name[:200]!r} is no plain "
                f"tensor, but a {type(value).__name__}."
            )
        stored = value.untyped_storage().nbytes()
        # An expanded tensor repeats what it stores; a damaged file claims more than it holds.
        if not value.numel() * value.element_size() <= stored <= size:
            raise Refused(
                f"The file is refused: it claims that {name[:200]!r} is {tuple(value.shape)} "
                f"and holds {stored} bytes of it in {size}."
            )
    names = _without_prefixes(tensors)
    yield Tensors(
        shapes={name: tuple(tensors[old].shape) for name, old in names.items()},
        dtypes={name: str(tensors[old].dtype) for name, old in names.items()},
        # A copy: JAX would keep using the memory-mapped file.
        read=lambda name: tensors[names[name]].detach().to(dtype=torch.float32, copy=True).numpy(),
    )


def _check_pickles(path: Path) -> bool:
    """Check a PyTorch file before it is unpickled, and return whether it is a zip."""
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
            # PyTorch checks all other names, but allows bytearrays of any length.
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
    with _read_weights_h5(weights, model, Description.from_config(config)) as tensors:
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

    Yields (path of the layer, number, array) per variable; a bad file raises any exception.
    """
    is_path = isinstance(source, Path)
    content = np.memmap(source, "uint8", "r") if is_path else source.getbuffer()
    _check_heaps(content)
    with h5py.File(source, "r") as file:
        links: dict[str, Any] = {}
        file.visititems_links(links.__setitem__)
        for path, link in links.items():
            if not isinstance(link, h5py.HardLink):
                raise Refused(f"The file is refused: it holds a link, {path[:200]!r}.")
        groups = {path: file[path] for path in links if isinstance(file[path], h5py.Group)}
        # The root has the model's name, which is not part of the variable paths.
        names = {
            f"/{path}".removesuffix("/vars"): str(group.attrs.get("name", ""))
            for path, group in groups.items()
            if path.endswith("/vars")
        }
        arrays = []
        for path in links.keys() - groups.keys():
            _check_array(file[path], len(content))
            layer, in_layer, number = f"/{path}".rpartition("/vars/")
            if in_layer and not path.startswith("optimizer/"):
                parents = itertools.accumulate(layer.split("/"), "{}/{}".format)
                name = "/".join(names[parent] for parent in parents if parent in names)
                arrays.append((name, number, file[path]))
        yield arrays


def _check_heaps(content: np.ndarray | memoryview) -> None:
    """Check the text heaps of an HDF5 file: HDF5 1.14 loops forever on an entry of length 0."""
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


def _check_array(array: Any, size: int) -> None:
    """Check that an array is stored in one piece, as by Keras; others could claim any size."""
    start, item = array.id.get_offset(), array.dtype.itemsize
    stored = array.id.get_type()
    as_written = array.dtype.kind == "V" or stored == h5py.h5t.py_create(array.dtype)
    in_file = start is not None and start + math.prod(array.shape) * item <= size
    if not as_written or not in_file or array.dtype.hasobject or stored.get_size() != item:
        raise Refused(
            f"The file is refused: it claims that {array.name!r} is {array.shape}, "
            "and doesn't hold all of it as Keras stores it."
        )


def _dtype(array: h5py.Dataset) -> np.dtype:
    is_bfloat16 = array.dtype == "V2" and array.attrs.get("dtype") == "bfloat16"
    return np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else array.dtype


def check_archive(path: str | os.PathLike) -> dict[str, Any]:
    """Check a `.keras` file before `keras.saving.load_model` reads it, and return its config.

    Keras accepts archives that expand to a hundred times their size, and weights files to a
    thousand. Raises a ValueError if the file is damaged, is not a `.keras` file, or expands to more
    than Keras would have written.
    """
    path = Path(path).expanduser()
    path.open("rb").close()  # An error about the path is an `OSError`.
    try:
        with _one_error(".keras"):
            config, weights = _members(path)
            with open_checked_h5(weights):
                return config
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _members(path: Path) -> tuple[dict[str, Any], io.BytesIO]:
    """Return the config and the weights of an archive, after a check of every member's size."""
    # Keras does not compress archives, but repacked ones may be compressed.
    limit = 2 * path.stat().st_size + (1 << 20)
    contents = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name, size = info.filename, info.file_size
            limit -= size
            known = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if limit < 0 or not known:
                raise Refused(
                    f"The file is refused: its {name[:200]} would expand to {size} bytes, too much "
                    "for a file of its size, or is compressed in an unusual way."
                )
            # zipfile would cut data off at the declared size, but Keras expands all of it.
            info.file_size += 1
            with archive.open(info) as member:
                content = member.read(size + 1)
            if len(content) != size:
                raise Refused(
                    f"The file is damaged: its {name[:200]} does not have the {size} bytes that "
                    "it declares."
                )
            if name in (CONFIG, WEIGHTS):
                contents[name] = content
    for name in (CONFIG, WEIGHTS):
        if name not in contents:
            raise Refused(f"The file holds no {name}.")
    config = json.loads(contents[CONFIG])
    if not isinstance(config, dict):
        raise Refused(f"The file is damaged: its {CONFIG} holds a {type(config).__name__}.")
    return config, io.BytesIO(contents[WEIGHTS])
