"""Keras's own files, checked before h5py or Keras reads them.

They may hold only arrays, stored as Keras stores them: nothing leads to another file, and the size
of a file bounds the memory.
"""

import contextlib
import io
import itertools
import math
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_vitx.weights.description import CONFIG, KERAS_WEIGHTS, FileError, parse_json


@contextlib.contextmanager
def open_checked_h5(*sources: Path | io.BytesIO) -> Iterator[list[tuple[str, str, h5py.Dataset]]]:
    """Open a weights file of Keras, or the shards of one.

    Yields (path of the layer, number, array) per variable. A bad file may raise any exception.
    """
    names, arrays, variables = {}, [], []
    with contextlib.ExitStack() as stack:
        for source in sources:
            content = (
                source.getbuffer()
                if isinstance(source, io.BytesIO)
                else np.memmap(source, mode="r")
            )
            _check_heaps(content)
            file = stack.enter_context(h5py.File(source, "r"))
            links: dict[str, Any] = {}
            file.visititems_links(links.__setitem__)
            for path, link in links.items():
                if not isinstance(link, h5py.HardLink):
                    raise FileError(f"The file is refused: it holds a link, {path[:200]!r}.")
                if not isinstance(file[path], h5py.Group):
                    _check_array(file[path], len(content))
                    arrays.append((f"/{path}", file[path]))
                # The root has the model's name, which is not part of the variable paths.
                elif path.endswith("/vars"):
                    # A layer that continues in another shard has its name in the first only.
                    layer = f"/{path}".removesuffix("/vars")
                    names[layer] = str(file[path].attrs.get("name", names.get(layer, "")))
        for path, array in arrays:
            layer, is_variable, number = path.rpartition("/vars/")
            if is_variable and not path.startswith("/optimizer/"):
                parents = itertools.accumulate(layer.split("/"), "{}/{}".format)
                name = "/".join(names[parent] for parent in parents if parent in names)
                variables.append((name, number, array))
        yield variables


def _check_heaps(content: np.ndarray | memoryview) -> None:
    """Check the text heaps of an HDF5 file: HDF5 1.14 loops forever on an entry of length 0."""
    steps = len(content) // 16  # The entries of heaps that do not overlap.
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
            steps -= 1
            if not 0 < length <= end - position or steps < 0:
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


def shards(path: Path) -> list[Path]:
    """Return the files beside a `.weights.json` that hold its arrays."""
    parts = parse_json(path.read_bytes())["weight_map"].values()
    names = {name for part in parts for name in ([part] if isinstance(part, str) else part)}
    for name in sorted(names):
        if not re.fullmatch(r"[^/\\\0]+\.weights\.h5", name):
            raise FileError(f"The file is refused: {name[:200]!r} is not a weights file beside it.")
        if not path.with_name(name).is_file():
            raise FileError(f"The file lacks {name[:200]!r} beside it.")
    return [path.with_name(name) for name in sorted(names)]


def read_archive(path: Path) -> tuple[dict[str, Any], Path | io.BytesIO]:
    """Return the config and the weights of a `.keras` file, or of a directory written by Keras."""
    if path.is_dir():
        config, weights = (path / CONFIG).read_bytes(), path / KERAS_WEIGHTS
        if not weights.is_file():
            raise FileError(f"The directory holds no {KERAS_WEIGHTS}.")
    else:
        config, weights = _members(path)
    config = parse_json(config)
    if not isinstance(config, dict):
        raise FileError(f"The file is damaged: its {CONFIG} holds a {type(config).__name__}.")
    return config, weights


def _members(path: Path) -> tuple[bytes, io.BytesIO]:
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
    return contents[CONFIG], io.BytesIO(contents[KERAS_WEIGHTS])
