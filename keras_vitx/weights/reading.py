"""Reading weights files, one array at a time.

safetensors, PyTorch with `weights_only=True` and h5py read them: no code in a file runs, no other
file is opened, and the size of a file bounds the memory.
"""

import contextlib
import io
import pickletools
import re
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.text import needs_extra
from keras_vitx.weights.description import Description, FileError, from_config, from_metadata
from keras_vitx.weights.keras_files import open_checked_h5, read_archive, shards
from keras_vitx.weights.names import checkpoint_names, is_head, renumber, weights_of

# Where training scripts store the weights; the first is taken: averaged weights.
PREFERRED = ("state_dict_ema", "model_ema", "state_dict", "model")

# Modules of Python whose objects only hold data; those of its other modules may run code.
DATA = {"_codecs", "argparse", "collections", "copyreg", "datetime", "decimal", "enum", "fractions"}
DATA |= {"functools", "ipaddress", "numbers", "pathlib", "types", "typing", "uuid", "zoneinfo"}
# What PyTorch makes itself.
KNOWN = re.compile(r"torch\.((_utils|_tensor|serialization|storage|nn\.parameter)\.)?\w+")
BUILTINS = "bool|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple"


class StoredArray(NamedTuple):
    """An array of an open file, read on demand."""

    shape: tuple[int, ...]
    dtype: str  # In the spelling of the format.
    read: Callable[[], np.ndarray]


class WeightsFile(NamedTuple):
    """An open file of weights.

    `native` says that names and layouts are those of Keras, where the array "LAYER/grid" holds the
    grid of position embeddings, and `square` that all images were square.
    """

    arrays: dict[str, StoredArray]
    description: Description | None = None
    native: bool = False
    square: bool = False


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

    The suffix of `name`, by default that of `path`, determines the format. The names of the arrays
    are those of the model, without the prefix that they have in the file. Raises a ValueError if
    the file is damaged, of another format, holds no arrays or the same names twice, and an
    ImportError for a PyTorch file without PyTorch.
    """
    suffix = ".keras" if path.is_dir() else suffix_of(name or path.name)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with contextlib.ExitStack() as stack:
        with _as_value_error(suffix):
            file = READERS[suffix](path, model, stack)
        if not file.arrays:
            raise ValueError("The file holds no arrays.")
        yield file


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
    """Return the type and the first line of an error, without what PyTorch adds to it."""
    line = str(error).rpartition("WeightsUnpickler error: ")[2].lstrip().split("\n")[0]
    line = re.sub(r"\x1b\[\d*m", "", line)[:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _select(tables: Mapping[str, Mapping], wanted: Collection[str], separator: str) -> dict:
    """Return the table that has all wanted names, behind a common prefix, and take it off.

    What else the file holds is left out. If names are missing, an error is to list them: the table
    that has most of them is returned, or the largest one.
    """
    wanted = {name for name in wanted if not is_head(name)}
    longest, found = max(map(len, wanted), default=0), Counter()
    for key, table in tables.items():
        for name in table:
            starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == separator)]
            names = ((name[:i], name[i:]) for i in starts if len(name) - i <= longest)
            found.update((key, prefix) for prefix, rest in names if rest in wanted)
    most = max(found.values(), default=0)
    if 2 * most < len(wanted):
        return dict(max(tables.values(), key=len))
    ranks: dict[int, list[tuple[str, str]]] = {}
    for place in (place for place, count in found.items() if count == most):
        first = "".join(place).partition(separator)[0]
        rank = PREFERRED.index(first) if first in PREFERRED else len(PREFERRED)
        ranks.setdefault(rank, []).append(place)
    best = ranks[min(ranks)]
    if len(best) > 1 and most == len(wanted):
        places = ", ".join(sorted(f"{''.join(place)[-100:]}*" for place in best)[:5])
        raise FileError(
            f"The file must hold the weights once. Received: {places}. Save the ones you mean to a "
            "file of their own."
        )
    key, prefix = best[0]
    names = {name: name[len(prefix) :] for name in tables[key] if name.startswith(prefix)}
    return {short: tables[key][name] for name, short in names.items()}


def _read_safetensors(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    file = stack.enter_context(safe_open(path, framework="numpy"))
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        array = file.get_slice(name)
        read = partial(file.get_tensor, name)
        arrays[name] = StoredArray(tuple(array.get_shape()), array.get_dtype(), read)
    arrays = _select({"": arrays}, checkpoint_names(model), ".")
    return WeightsFile(arrays, from_metadata(file.metadata()))


def _read_keras_weights(
    sources: Sequence[Path | io.BytesIO], model, stack: contextlib.ExitStack
) -> WeightsFile:
    # Keras numbers the variables of a layer in order.
    names, counts = {}, Counter()
    for _, path, _ in weights_of(model):
        layer = path.rpartition("/")[0]
        names[f"{layer}/{counts[layer]}"] = path
        counts[layer] += 1
    arrays = {}
    for layer, number, array in stack.enter_context(open_checked_h5(*sources)):
        is_bfloat16 = array.dtype == "V2" and array.attrs.get("dtype") == "bfloat16"
        dtype = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else array.dtype
        read = partial(lambda array, dtype: array[()].view(dtype), array, dtype)
        arrays[f"{layer}/{number}"] = StoredArray(array.shape, str(dtype), read)
    renumbered = renumber(arrays, model)
    arrays = {renumbered[name]: array for name, array in arrays.items()}
    arrays = {
        names.get(name, name): array
        for name, array in _select({"": arrays}, names, "/").items()
        # The states of random generators are integers, not weights.
        if name in names or name.endswith("/grid") or "int" not in array.dtype
    }
    return WeightsFile(arrays, native=True)


def _read_keras(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    # Without building the model of the config, as Keras would.
    config, weights = read_archive(path)
    file = _read_keras_weights([weights], model, stack)
    return file._replace(description=from_config(config))


def _read_torch(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    torch = import_torch(f"Reading {path}")
    others: list[str] = []
    try:
        is_zip, objects = _check_pickles(path)
        others = sorted(
            name
            for name in objects
            if name.partition(".")[0] not in sys.stdlib_module_names and not KNOWN.fullmatch(name)
        )
        # Training scripts store objects beside the weights. With mmap, arrays are read from the
        # disk on demand.
        with torch.serialization.safe_globals([(kind, name) for name, kind in objects.items()]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except FileError:
        raise
    except Exception as error:  # The unpickler raises whatever a bad file provokes.
        beside = f", which holds {', '.join(others)[:200]}" if others else ""
        raise FileError(
            f"The file is refused: it is damaged or not a PyTorch checkpoint{beside} "
            f"({_cause(error)})."
        ) from error
    wanted = checkpoint_names(model)
    selected = _select(_tables(content), wanted, ".")
    arrays, size = {}, path.stat().st_size
    for name, value in selected.items():
        if not isinstance(value, torch.Tensor) and name not in wanted:
            continue
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
    if not arrays:
        kinds = ", ".join(others)[:200] or type(content).__name__
        raise FileError(
            f"The file is not a plain checkpoint (tensors by name): it holds {kinds}. Save the "
            "`state_dict()` of the model."
        )
    return WeightsFile(arrays)


class _LeftOut:
    """Stands for an object beside the weights, which is not made."""

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        pass


class _LeftOutDict:
    """Stands for one that is filled like a dictionary; PyTorch fills only plain ones."""

    def __new__(cls, *args):
        return OrderedDict()


class _LeftOutList:
    """Stands for one that is filled like a list."""

    def __new__(cls, *args):
        return []


def _check_pickles(path: Path) -> tuple[bool, dict[str, type]]:
    """Check a PyTorch file before unpickling: return whether it is a zip, and its `_objects`."""
    objects: dict[str, type] = {}
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
            objects |= _objects(content)
    return is_zip, objects


def _objects(content: IO[bytes]) -> dict[str, type]:
    """Return the objects that a pickle names, with what stands for them if they are left out."""
    found: dict[str, type] = {}
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        used = list(opcode.stack_before)
        if pickletools.markobject in used:
            while stack.pop() is not pickletools.markobject:
                pass
            used = used[: used.index(pickletools.markobject)]
        taken = [stack.pop() for _ in used][::-1]
        kind, value = opcode.name, argument if isinstance(argument, str) else None
        if kind in ("GLOBAL", "STACK_GLOBAL"):
            value = _checked(*(argument.split(" ") if argument else taken))
            found.setdefault(value, _LeftOut)
        elif kind == "MARK":
            value = pickletools.markobject
        elif "GET" in kind:
            value = memo[argument]
        elif "PUT" in kind:
            memo[argument] = stack[-1]
        elif kind == "MEMOIZE":
            value = memo[len(memo)] = taken[0]
        elif taken and kind != "BINPERSID":
            # The object that is made, or changed, is the first.
            value = taken[0] if isinstance(taken[0], str) else None
            if value in found and kind.startswith(("SETITEM", "APPEND")):
                found[value] = _LeftOutDict if kind.startswith("SETITEM") else _LeftOutList
        stack += [value] * len(opcode.stack_after)
    return found


def _checked(module: str, name: str) -> str:
    """Return the full name of an object in a pickle, unless it may run code."""
    # PyTorch writes the names of Python 2.
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    package = module.partition(".")[0]
    is_data = package in DATA or package not in sys.stdlib_module_names
    if not (re.fullmatch(BUILTINS, name) if module == "builtins" else is_data):
        raise FileError(
            f"The file is refused: it holds {module[:200]}.{name[:200]}, which could run code. If "
            "you trust it, load it with torch.load(..., weights_only=False), and save the "
            "`state_dict()` alone."
        )
    return f"{module}.{name}"


def _tables(content: Any) -> dict[str, dict[str, Any]]:
    """Return the dictionaries of a checkpoint, at most four deep, by where they are."""
    tables: dict[str, dict[str, Any]] = {}
    queue: list[tuple[str, Any, tuple[int, ...]]] = [("", content, ())]
    visited = set()
    for key, value, parents in queue:
        if id(value) in parents:
            raise FileError("The file is not a plain checkpoint: a dictionary holds itself.")
        if not isinstance(value, dict) or id(value) in visited:
            continue
        visited.add(id(value))
        tables[key] = {name: one for name, one in value.items() if isinstance(name, str)}
        if len(parents) < 4:
            inside = (*parents, id(value))
            queue += [(f"{key}{name[:100]}.", one, inside) for name, one in tables[key].items()]
    return tables or {"": {}}


READERS = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".pth.tar"), _read_torch),
    ".weights.h5": lambda path, model, stack: _read_keras_weights([path], model, stack),
    ".weights.json": lambda path, model, stack: _read_keras_weights(shards(path), model, stack),
    ".keras": _read_keras,
}


def check_archive(path: Path) -> dict[str, Any]:
    """Check what `keras.saving.load_model` is to read, and return its config.

    Keras accepts archives that expand to a hundred times their size, and weights files to a
    thousand. Raises a ValueError if the file is damaged, not a `.keras` file, or expands too far.
    """
    if not path.is_dir():
        path.open("rb").close()  # Raises an OSError if the path is wrong.
    with _as_value_error(".keras"):
        config, weights = read_archive(path)
        with open_checked_h5(weights):
            return config
