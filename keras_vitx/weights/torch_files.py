"""PyTorch's files, checked before PyTorch reads them.

They are read with `weights_only=True`: objects beside the tensors are left out, not made, and the
size of a file bounds the memory.
"""

import contextlib
import pickle
import pickletools
import re
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from keras_vitx.text import needs_extra
from keras_vitx.weights.description import FileError, cause_of

# Modules of Python whose objects only hold data; those of its other modules may run code.
DATA = {"_codecs", "argparse", "collections", "copyreg", "datetime", "decimal", "enum", "fractions"}
DATA |= {"functools", "ipaddress", "numbers", "pathlib", "types", "typing", "uuid", "zoneinfo"}
# What PyTorch makes itself.
KNOWN = re.compile(r"torch\.((_utils|_tensor|serialization|storage|nn\.parameter)\.)?\w+")
BUILTINS = "bool|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str|tuple"


def import_torch(task: str) -> ModuleType:
    """Return PyTorch; raise an ImportError that says which task needs it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(needs_extra(f"{task}, a PyTorch file, needs PyTorch", "torch")) from error
    return torch


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tensors in the dictionaries of a PyTorch file, at most four deep, by place.

    Training scripts store other objects beside them. Raises a FileError if the file is damaged, or
    holds objects that may run code or no tensors, and an ImportError without PyTorch.
    """
    torch = import_torch(f"Reading {path}")
    others = ""
    try:
        is_zip, objects = _check_pickles(path)
        names = (name for name in sorted(objects) if not KNOWN.fullmatch(name))
        others = ", ".join(name for name in names if _package(name) not in sys.stdlib_module_names)
        # With mmap, arrays are read from the disk on demand.
        with torch.serialization.safe_globals([(kind, name) for name, kind in objects.items()]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except FileError:
        raise
    except Exception as error:  # The unpickler raises whatever a bad file provokes.
        beside = f", which holds {others[:200]}" if others else ""
        raise FileError(
            f"The file is refused: it is damaged or not a PyTorch checkpoint{beside} "
            f"({cause_of(error)})."
        ) from error
    tables: dict[str, dict[str, Any]] = {}
    queue: list[tuple[str, Any, tuple[int, ...]]] = [("", content, ())]
    visited = set()
    for key, value, parents in queue:
        if id(value) in parents:
            raise FileError("The file is not a plain checkpoint: a dictionary holds itself.")
        if isinstance(value, dict) and id(value) not in visited:
            visited.add(id(value))
            named = {name: one for name, one in value.items() if isinstance(name, str)}
            tables[key] = {n: one for n, one in named.items() if isinstance(one, torch.Tensor)}
            if len(parents) < 4:
                inside = (*parents, id(value))
                queue += [(f"{key}{name[:100]}.", one, inside) for name, one in named.items()]
    if not any(tables.values()):
        raise FileError(
            "The file is not a plain checkpoint (tensors by name): it holds "
            f"{others[:200] or type(content).__name__}. Save the `state_dict()` of the model."
        )
    return tables


def check_tensor(tensor: Any, name: str, size: int) -> None:
    """Raise a FileError unless a tensor is plain, and stored in a file of `size` bytes."""
    import torch

    if (tensor.device.type, tensor.layout) != ("cpu", torch.strided) or tensor.is_nested:
        raise FileError(f"The file is not a plain checkpoint: {name[:200]!r} is no plain tensor.")
    nbytes = tensor.untyped_storage().nbytes()
    # An expanded tensor repeats its storage; a damaged file declares more than it holds.
    if not tensor.numel() * tensor.element_size() <= nbytes <= size:
        raise FileError(
            f"The file is refused: it claims that {name[:200]!r} is {tuple(tensor.shape)} "
            f"and holds {nbytes} bytes of it in {size}."
        )


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a copy of a tensor, float32: JAX would keep using the memory-mapped file."""
    import torch

    return tensor.detach().to(dtype=torch.float32, copy=True).numpy()


class _LeftOut:
    """Stands for an object beside the weights, which is not made; notes how it is filled."""

    filled_as: type | None = None  # PyTorch fills only plain dictionaries and lists.

    def __new__(cls, *args):
        return cls.filled_as() if cls.filled_as else super().__new__(cls)

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        type(self).filled_as = OrderedDict

    def extend(self, items):
        type(self).filled_as = list

    append = extend


class _DryRun(pickle.Unpickler):
    """Reads a pickle with a class of its own for every object, and so runs none of its code."""

    def __init__(self, file: IO[bytes]):
        super().__init__(file, encoding="latin1")
        self.objects: dict[str, type[_LeftOut]] = {}

    def find_class(self, module, name):
        name = _checked(module, name)
        return self.objects.setdefault(name, type(name, (_LeftOut,), {}))

    def persistent_load(self, pid):
        return None


def _check_pickles(path: Path) -> tuple[bool, dict[str, type]]:
    """Check a PyTorch file before unpickling: return whether it is a zip, and its objects."""
    objects: dict[str, type] = {}
    with path.open("rb") as file, contextlib.ExitStack() as stack:
        is_zip = file.read(4) == b"PK\3\4"
        file.seek(0)
        # Before PyTorch 1.6: a number, the version, the machine, the content, the names of arrays.
        pickles = [file] * 5
        if is_zip:
            archive = stack.enter_context(zipfile.ZipFile(file))
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise FileError(
                    "The file is a TorchScript program, not a plain checkpoint (tensors by name). "
                    "Save its `state_dict()`."
                )
            # PyTorch stores members uncompressed, so they can't expand.
            for member in archive.infolist():
                if member.compress_type or member.file_size != member.compress_size:
                    raise ValueError(f"{member.filename[:200]!r} is compressed")
            if bad := archive.testzip():
                raise ValueError(f"the checksum of {bad[:200]!r} is wrong")
            pickles = [archive.open(name) for name in archive.namelist() if name.endswith(".pkl")]
        for content in pickles:
            start = content.tell()
            _check_operations(content)
            content.seek(start)
            dry_run = _DryRun(content)
            dry_run.load()
            objects |= dry_run.objects
    return is_zip, objects


def _check_operations(content: IO[bytes]) -> None:
    """Check a pickle for operations that take memory or objects from elsewhere than the file."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        protocol = max(opcode.proto, argument if opcode.name == "PROTO" else 0)
        if protocol > 3:
            raise FileError(
                f"The file is refused: its pickle protocol is {protocol}, and PyTorch reads 2 "
                "without running code. Save it with the default protocol of torch.save."
            )
        if opcode.name.startswith("EXT") or ("PUT" in opcode.name and int(argument) > count):
            raise ValueError(f"{opcode.name} {argument} is none of PyTorch's")


def _checked(module: str, name: str) -> str:
    """Return the full name of an object in a pickle, unless it may run code."""
    # PyTorch writes the names of Python 2.
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    is_data = _package(module) in DATA or _package(module) not in sys.stdlib_module_names
    if not (re.fullmatch(BUILTINS, name) if module == "builtins" else is_data):
        raise FileError(
            f"The file is refused: it holds {module[:200]}.{name[:200]}, which could run code. If "
            "you trust it, load it with torch.load(..., weights_only=False), and save the "
            "`state_dict()` alone."
        )
    return f"{module}.{name}"


def _package(name: str) -> str:
    return name.partition(".")[0]
