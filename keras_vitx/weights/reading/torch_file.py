"""PyTorch checkpoints: pickles of tensors, read without running any code in the pickle."""

import argparse
import contextlib
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_vitx.text import needs_extra
from keras_vitx.weights.reading.tensors import Refused, Tensors, without_prefixes

# The globals that the pickle of a plain checkpoint may refer to, as "module name". PyTorch's
# own list is longer and includes, for example, bytearrays of any length.
PICKLED = re.compile(
    r"collections (OrderedDict|Counter)|_codecs encode|(__builtin__|builtins) (set|complex)"
    r"|argparse Namespace|torch(\.cuda)? \w+Storage|torch\.storage \w+Storage"
    r"|torch (Size|device|bool|complex(32|64|128)|b?float\d+\w*|u?int\d+)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter"
)

# Files from before PyTorch 1.6 begin with this pickled magic number.
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# Keys under which training scripts store the weights; averaged weights first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")


@contextlib.contextmanager
def read_torch(path: Path, model) -> Iterator[Tensors]:
    """Open a PyTorch checkpoint.

    Raises:
        ImportError: if PyTorch isn't installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            needs_extra(f"Reading {path}, a PyTorch file, needs PyTorch", "torch")
        ) from error
    try:
        is_zip = _check(path)
        # Training scripts store their parsed arguments beside the weights. With
        # mmap, arrays are read from the disk on demand.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # The unpickler raises whatever a bad file provokes.
        cause = str(error).split("\n")[0][:200]
        raise Refused(
            "The file is refused: it is damaged, or holds Python objects other than tensors, "
            f"which could run code when read ({type(error).__name__}: {cause})."
        ) from error
    size = path.stat().st_size
    tensors = {}
    for name, value in _unwrapped(content).items():
        if not isinstance(value, torch.Tensor):
            raise Refused(
                f"The file is no plain checkpoint (tensors by name): {name[:200]!r} is "
                f"a {type(value).__name__}."
            )
        tensors[name] = _plain(name, value.detach(), size)
    names = without_prefixes(tensors)
    yield Tensors(
        shapes={name: tuple(tensors[old].shape) for name, old in names.items()},
        dtypes={name: str(tensors[old].dtype) for name, old in names.items()},
        # A copy: JAX would keep using the memory-mapped file.
        read=lambda name: tensors[names[name]].to(dtype=torch.float32, copy=True).numpy(),
    )


def _check(path: Path) -> bool:
    """Run all checks possible without unpickling, and return whether the file is a zip.

    Raises:
        Exception: of any kind, when something is wrong with the file.
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
                # PyTorch stores members uncompressed, so they can't expand.
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


def _unwrapped(content: Any) -> dict[str, Any]:
    # Limited in depth, since a dictionary that contains itself would loop forever.
    for _ in range(len(WRAPPERS) * 2):
        if not isinstance(content, dict):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(name): value for name, value in content.items()}
        content = inner
    raise Refused(
        f"The file is no plain checkpoint (tensors by name): it holds a {type(content).__name__}."
    )


def _plain(name: str, tensor, size: int):
    """Return the tensor after checking that a file of `size` bytes can hold its values."""
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
