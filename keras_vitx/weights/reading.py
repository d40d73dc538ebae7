"""Weights in files of every known kind, opened and read one array at a time."""

import argparse
import contextlib
import io
import json
import math
import pickletools
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import needs_extra
from keras_vitx.weights.description import Description


@dataclass(frozen=True)
class Tensors:
    """The arrays of an opened file.

    Attributes:
        shapes: Of every array, by name.
        dtypes: Likewise; as the file's format spells them.
        read: Gives an array by its name, float32.
        native: Whether names and layouts are those of Keras' variables, and not
            those of a PyTorch checkpoint.
        description: What the file says about its model, if it does.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    read: Callable[[str], np.ndarray]
    native: bool = False
    description: Description | None = None

    def is_floating(self, name: str) -> bool:
        """Tell whether an array holds floating-point numbers, as weights do."""
        return self.dtypes[name].removeprefix("torch.").lower() in FLOATING


# As NumPy, PyTorch and Keras spell them, and as safetensors does.
FLOATING = {"bfloat16", "float16", "float32", "float64", "bf16", "f16", "f32", "f64"}


@contextlib.contextmanager
def opened(path: Path, model) -> Iterator[Tensors]:
    """Open a file of weights; `model` is the one that they are for.

    Opening a file takes no memory for what it merely claims to hold, and runs
    nothing that is in it. What can be wrong with it is found here, so that
    `Tensors.read` succeeds.

    Raises:
        ValueError: when the file is damaged, isn't of the kind that its suffix
            says, or holds anything but arrays.
        ImportError: when a PyTorch file is given and PyTorch isn't installed.
    """
    kind = suffix_of(path)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        try:
            tensors = stack.enter_context(KINDS[kind](path, model))
        except (ImportError, Refused):
            raise
        except Exception as error:  # Readers pass on whatever a bad file provokes.
            raise ValueError(f"The file is damaged or no {kind} file ({_cause(error)}).") from error
        if not tensors.shapes:
            raise ValueError("The file holds no arrays.")
        if tensors.description and min(tensors.description.grid or (1,)) < 1:
            raise ValueError(f"The file says that its grid is {tensors.description.grid}.")
        yield tensors


class Refused(ValueError):
    """A file is of the right kind, and not taken; the message says why."""


def _cause(error: Exception) -> str:
    """Say an error of a library in one line of moderate length."""
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0][:200]}" if lines[0] else type(error).__name__


def suffix_of(path: Path) -> str | None:
    """Return the known suffix of a path, None when it bears no such suffix."""
    return next((suffix for suffix in KINDS if path.name.endswith(suffix)), None)


@contextlib.contextmanager
def _safetensors(path: Path, model) -> Iterator[Tensors]:
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
def _torch(path: Path, model) -> Iterator[Tensors]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            needs_extra(f"Reading {path}, a PyTorch file, needs PyTorch", "torch")
        ) from error
    try:
        is_zip = _check_pickle(path)
        # Training scripts keep their parsed arguments beside the weights. With
        # mmap, a file's arrays come from the disk as they are asked for.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # The unpickler passes on whatever a bad file provokes.
        raise Refused(
            "The file is refused: it is damaged, or holds Python objects other than tensors, "
            f"which could run code when read ({_cause(error)})."
        ) from error
    size = path.stat().st_size
    tensors = {}
    for name, value in _unwrapped(content).items():
        if not isinstance(value, torch.Tensor):
            raise Refused(
                f"The file is no plain checkpoint, tensors by name: {name[:200]!r} is "
                f"a {type(value).__name__}."
            )
        tensors[name] = _plain(name, value.detach(), size)
    names = _without_prefixes(tensors)
    yield Tensors(
        shapes={name: tuple(tensors[old].shape) for name, old in names.items()},
        dtypes={name: str(tensors[old].dtype) for name, old in names.items()},
        # A copy: JAX would go on using the file's own memory.
        read=lambda name: tensors[names[name]].to(dtype=torch.float32, copy=True).numpy(),
    )


# What the pickle of a plain checkpoint may name, as "module name". PyTorch allows
# more, such as a bytearray of any length.
PICKLED = re.compile(
    r"collections (OrderedDict|Counter)|_codecs encode|(__builtin__|builtins) (set|complex)"
    r"|argparse Namespace|torch(\.cuda)? \w+Storage|torch\.storage \w+Storage"
    r"|torch (Size|device|bool|complex(32|64|128)|b?float\d+\w*|u?int\d+)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter"
)

# Files from before PyTorch 1.6 begin with this number, pickled.
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def _check_pickle(path: Path) -> bool:
    """Check all of a PyTorch file that can be without unpickling; say whether it is a zip.

    Raises:
        Exception: of any kind, when something is wrong with it.
    """
    with path.open("rb") as file:
        start = file.read(len(OLD_MAGIC))
        if start == OLD_MAGIC:
            # The version, a note about the machine, the content.
            for _ in range(3):
                _check_names(file)
            return False
        if not start.startswith(b"PK\3\4"):
            raise ValueError("neither of PyTorch's formats")
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                # PyTorch compresses nothing; what is stored as it is can't expand.
                if member.compress_type != zipfile.ZIP_STORED or (
                    member.file_size != member.compress_size
                ):
                    raise ValueError(f"{member.filename[:200]!r} is compressed")
            bad = archive.testzip()
            if bad is not None:
                raise ValueError(f"the checksum of {bad[:200]!r} is wrong")
            for member in archive.infolist():
                if member.filename.endswith(".pkl"):
                    with archive.open(member) as content:
                        _check_names(content)
    return True


def _check_names(file: BinaryIO) -> None:
    for operation, name, _ in pickletools.genops(file):
        if operation.name in ("GLOBAL", "INST") and not PICKLED.fullmatch(name):
            raise ValueError(f"it names {name[:200]!r}")


def _plain(name: str, tensor, size: int):
    """Check that a tensor's values are all in a file of `size` bytes; return the tensor."""
    known = tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided"
    if not known or tensor.is_nested or tensor.is_quantized or tensor.is_neg() or tensor.is_conj():
        raise Refused(f"The file is no plain checkpoint: {name[:200]!r} is no plain tensor.")
    stored = tensor.untyped_storage().nbytes()
    if not tensor.numel() * tensor.element_size() <= stored <= size:
        raise Refused(
            f"The file is refused: it claims that {name[:200]!r} is {tuple(tensor.shape)} "
            f"and holds {stored} bytes of it in {size}."
        )
    return tensor


# Where training scripts keep the weights in their file; averaged ones first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")

# What wrappers of modules put before every name.
PREFIXES = ("module.", "model.", "_orig_mod.")


def _unwrapped(content: Any) -> dict[str, Any]:
    # A few at most; a dictionary that holds itself would have no end.
    for _ in range(len(WRAPPERS) * 2):
        if not isinstance(content, dict):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(name): value for name, value in content.items()}
        content = inner
    raise Refused(
        f"The file is no plain checkpoint, tensors by name: it holds a {type(content).__name__}."
    )


def _without_prefixes(names) -> dict[str, str]:
    """Map names without the prefixes that all of them bear to the names as they are."""
    stripped = {name: name for name in names}
    while stripped:
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in stripped)), None)
        if prefix is None:
            break
        stripped = {name.removeprefix(prefix): old for name, old in stripped.items()}
    return stripped


@contextlib.contextmanager
def _keras_weights(path: Path, model) -> Iterator[Tensors]:
    yield _from_h5(path, np.memmap(path, "uint8", "r"), model)


# What a `.keras` file says about its model, and its weights.
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


@contextlib.contextmanager
def _keras(path: Path, model) -> Iterator[Tensors]:
    # Keras itself would build whatever model the file describes.
    limit = 2 * path.stat().st_size + (1 << 20)
    with zipfile.ZipFile(path) as archive:
        config = json.loads(_member(archive, CONFIG, limit).getvalue())
        content = _member(archive, WEIGHTS, limit)
    yield _from_h5(content, np.frombuffer(content.getbuffer(), "uint8"), model, _described(config))


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> io.BytesIO:
    """Read a member of an archive, checked against its checksum; at most `limit` bytes."""
    if name not in archive.namelist():
        raise Refused(f"The file holds no {name}.")
    info = archive.getinfo(name)
    if info.file_size > limit:
        raise Refused(
            f"The file is refused: its {name} would expand to {info.file_size} bytes, "
            f"and no more than {limit} are taken from a file of its size."
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"The file is refused: its {name} is compressed in an unusual way.")
    content = io.BytesIO()
    # All its room at once: growing takes the room twice.
    content.seek(max(info.file_size - 1, 0))
    content.write(b"\0")
    content.seek(0)
    with archive.open(info) as member:
        # Piece by piece: a single read may expand to more than the size declared.
        shutil.copyfileobj(member, content, 1 << 20)
    if content.tell() != info.file_size:
        raise Refused(f"The file is damaged: its {name} is cut off.")
    return content


def _described(config: Any) -> Description:
    """Return what a saved `Chain`'s config says about it."""
    config = config["config"]
    names, preprocessing = config.get("class_names"), config.get("preprocessing")
    layers = (layer.get("config") or {} for layer in config.get("layers") or ())
    grid = next((layer["grid"] for layer in layers if layer.get("grid")), None)
    return Description(
        model=str(config["name"]),
        family=str(config.get("family")),
        grid=None if grid is None else (int(grid[0]), int(grid[1])),
        class_names=None if names is None else tuple(str(name) for name in names),
        preprocessing=None if preprocessing is None else Preprocessing.of(_values(preprocessing)),
    )


def _values(entry: Any) -> Any:
    """Undo how Keras writes tuples and arrays into a config."""
    if isinstance(entry, dict) and entry.get("class_name") == "__numpy__":
        entry = entry["config"]["value"]
    if isinstance(entry, dict):
        return {str(key): _values(value) for key, value in entry.items()}
    return tuple(_values(value) for value in entry) if isinstance(entry, list) else entry


def _from_h5(
    source: Path | io.BytesIO, content: np.ndarray, model, description: Description | None = None
) -> Tensors:
    """The arrays of a Keras weights file, whose bytes are `content`."""
    _check_heaps(content)
    # Keras numbers a layer's own variables in their order.
    order: dict[str, list[str]] = {}
    for variable in model.weights:
        order.setdefault(variable.path.rpartition("/")[0], []).append(variable.path)
    arrays, dtypes = {}, {}
    with h5py.File(source, "r") as file:
        for layer, number, dataset in _layer_arrays(file, (), set()):
            paths = order.get(layer, [])
            known = number.isdecimal() and int(number) < len(paths)
            # The states of random generators are whole numbers, and no weights.
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
    """Check the heaps in which an HDF5 file keeps text, such as layers' names.

    HDF5 1.14 never comes back from one with an entry of no length.
    """
    for found in re.finditer(rb"GCOL\x01", content):
        start = found.start()
        size = int.from_bytes(content[start + 8 : start + 16].tobytes(), "little")
        # No heap is smaller; what isn't in the file is text in an array, or HDF5 sees it.
        if not 4096 <= size <= len(content) - start:
            continue
        place, end = start + 16, start + size
        while place + 16 <= end:
            header = content[place : place + 16].tobytes()
            # Number 0 is the free space at the end, which counts its header.
            length = int.from_bytes(header[8:], "little")
            if header[:2] != b"\0\0":
                length = 16 + (length + 7) // 8 * 8
            if not 0 < length <= end - place:
                raise ValueError("a heap of text is damaged")
            place += length


def _layer_arrays(
    group: h5py.Group, names: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, str, h5py.Dataset]]:
    """Walk a Keras weights file: (layer's path, number, array), from the layers' names."""
    own = _child(group, "vars", seen) if "vars" in group else None
    # The root bears the model's name, which variables' paths don't have.
    if own is not None and group.name != "/":
        names = (*names, str(own.attrs.get("name", "")))
    for number in own or ():
        dataset = _child(own, number, seen)
        if not isinstance(dataset, h5py.Dataset):
            raise Refused(f"The file is no Keras weights file: {dataset.name!r} is no array.")
        yield "/".join(names), number, dataset
    for key in group:
        is_optimizer = group.name == "/" and key == "optimizer"
        if key != "vars" and not is_optimizer:
            child = _child(group, key, seen)
            if isinstance(child, h5py.Group):
                yield from _layer_arrays(child, names, seen)


def _child(group: h5py.Group, key: str, seen: set[int]) -> Any:
    """Return what a group holds itself, each thing once: links may go in circles, or out."""
    child = group[key] if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
    address = None if child is None else h5py.h5o.get_info(child.id).addr
    if address is None or address in seen:
        raise Refused(f"The file is refused: it holds a link, {key[:200]!r}.")
    seen.add(address)
    if key == "vars" and not isinstance(child, h5py.Group):
        raise Refused(f"The file is no Keras weights file: {child.name!r} is an array.")
    return child


def _in_place(dataset: h5py.Dataset, content: np.ndarray) -> np.ndarray:
    """Return an array as a view of the file's bytes.

    Keras stores arrays as they are in memory. Compressed, scattered or missing
    ones could be of any size, and are refused.
    """
    stored = dataset.id.get_type()
    dtype = dataset.dtype
    as_written = dtype.kind == "V" or stored == h5py.h5t.py_create(dtype)
    if dtype == "V2" and dataset.attrs.get("dtype") == "bfloat16":
        dtype = np.dtype(ml_dtypes.bfloat16)
    start, nbytes = dataset.id.get_offset(), math.prod(dataset.shape) * dtype.itemsize
    if not as_written or stored.get_size() != dtype.itemsize:
        raise Refused(f"The file is refused: {dataset.name!r} is no array as Keras stores it.")
    if start is None or not 0 <= start <= start + nbytes <= len(content):
        raise Refused(
            f"The file is refused: it claims that {dataset.name!r} is {dataset.shape}, "
            "and doesn't hold all of it as Keras stores it."
        )
    return content[start : start + nbytes].view(dtype).reshape(dataset.shape)


KINDS = {
    ".safetensors": _safetensors,
    ".pth": _torch,
    ".pt": _torch,
    ".bin": _torch,
    ".pth.tar": _torch,
    ".weights.h5": _keras_weights,
    ".keras": _keras,
}
