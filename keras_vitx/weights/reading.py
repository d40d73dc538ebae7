"""Reading weights files, one array at a time.

safetensors, PyTorch with `weights_only=True` and h5py read them: no code in a file runs, no other
file is opened, and the size of a file bounds the memory.
"""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.positions import Grid
from keras_vitx.weights.description import (
    Description,
    FileError,
    cause_of,
    from_config,
    from_metadata,
)
from keras_vitx.weights.keras_files import open_checked_h5, read_archive, shards
from keras_vitx.weights.names import checkpoint_names, is_head, renumber, weights_of
from keras_vitx.weights.torch_files import check_tensor, read_tables, to_numpy
from keras_vitx.weights.transformers import REGISTERS, prefix_of, timm_names

# Where training scripts store the weights; the first is taken: averaged weights, such as "ema".
PREFERRED = (".*(?<![a-z])ema(?![a-z]).*", "state_dict", "model")


class StoredArray(NamedTuple):
    """An array of an open file, read on demand."""

    shape: tuple[int, ...]
    dtype: str  # In the spelling of the format.
    read: Callable[[], np.ndarray]


class WeightsFile(NamedTuple):
    """An open file of weights."""

    arrays: dict[str, StoredArray]
    description: Description | None = None
    native: bool = False  # Names and layouts are Keras's; "LAYER/grid" is the grid of positions.
    square: bool = False  # All images were square.
    headless: bool = False  # There is no classifier.

    def grid_of(self, layer: str) -> Grid | None:
        """Return the grid of the positions of a layer, or None if the file does not tell it."""
        array = self.arrays.get(f"{layer}/grid") if self.native else None
        if array is not None and array.shape == (2,) and "int" in array.dtype:
            return tuple(array.read().tolist())
        return self.description and self.description.grid


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
        with as_value_error(suffix):
            file = READERS[suffix](path, model, stack)
        if not file.arrays:
            raise ValueError("The file holds no arrays.")
        yield file


@contextlib.contextmanager
def as_value_error(suffix: str) -> Iterator[None]:
    """Re-raise whatever a library raises about a bad file as a ValueError."""
    try:
        yield
    except (ImportError, FileError):
        raise
    except Exception as error:
        raise ValueError(
            f"The file is damaged or not a {suffix} file ({cause_of(error)})."
        ) from error


def _select(tables: Mapping[str, Mapping], wanted: Collection[str], separator: str) -> dict:
    """Return the table that has all wanted names, behind a common prefix, and take it off.

    What else the file holds is left out. If names are missing, an error is to list them: the table
    that has most of them is returned, or the largest one.
    """
    wanted = {name for name in wanted if not is_head(name)}
    longest = max(map(len, wanted), default=0)
    found: Counter[tuple[str, str]] = Counter()
    for key, table in tables.items():
        for name in table:
            for i in range(max(len(name) - longest, 0), len(name)):
                if (i == 0 or name[i - 1] == separator) and name[i:] in wanted:
                    found[key, name[:i]] += 1
    most = max(found.values(), default=0)
    if 2 * most < len(wanted):
        return dict(max(tables.values(), key=len))
    places = sorted((place for place, count in found.items() if count == most), key=_rank)
    places = [place for place in places if _rank(place) == _rank(places[0])]
    if len(places) > 1:
        copies = ", ".join(sorted(f"{''.join(place)[-100:]}*" for place in places)[:5])
        raise FileError(
            f"The file must hold the weights once. Received: {copies}. Save the ones you mean to a "
            "file of their own."
        )
    key, prefix = places[0]
    names = {name: name[len(prefix) :] for name in tables[key] if name.startswith(prefix)}
    return {short: tables[key][name] for name, short in names.items()}


def _rank(place: tuple[str, str]) -> int:
    first = re.split("[./]", "".join(place))[0]
    ranks = (rank for rank, name in enumerate(PREFERRED) if re.fullmatch(name, first))
    return next(ranks, len(PREFERRED))


def _from_transformers(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """Return the arrays of a Transformers checkpoint by timm's names, and others as they are."""
    prefix = prefix_of(arrays)
    if prefix is None:
        return arrays
    has_registers = prefix + REGISTERS in arrays
    joined = {
        name: _joined([arrays[part] for part in parts])
        for name, parts in timm_names(arrays, prefix).items()
    }
    if has_registers:
        # As in timm, whose class token has the position of its own added.
        token, positions = joined["cls_token"].read, joined["pos_embed"]
        one, count, dim = positions.shape
        joined["cls_token"] = joined["cls_token"]._replace(
            read=lambda: token() + positions.read()[:, :1]
        )
        joined["pos_embed"] = positions._replace(
            shape=(one, count - 1, dim), read=lambda: positions.read()[:, 1:]
        )
    return joined


def _joined(parts: Sequence[StoredArray]) -> StoredArray:
    """Return arrays as one, along the first axis."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return StoredArray(
        shape, parts[0].dtype, lambda: np.concatenate([part.read() for part in parts])
    )


def _read_safetensors(path: Path, model, stack: contextlib.ExitStack) -> WeightsFile:
    file = stack.enter_context(safe_open(path, framework="numpy"))
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        array = file.get_slice(name)
        read = partial(file.get_tensor, name)
        arrays[name] = StoredArray(tuple(array.get_shape()), array.get_dtype(), read)
    arrays = _from_transformers(_select({"": arrays}, checkpoint_names(model), "."))
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
    arrays, size = {}, path.stat().st_size
    for name, tensor in _select(read_tables(path), checkpoint_names(model), ".").items():
        check_tensor(tensor, name, size)
        dtype = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = StoredArray(tuple(tensor.shape), dtype, partial(to_numpy, tensor))
    return WeightsFile(_from_transformers(arrays))


READERS = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".pth.tar"), _read_torch),
    ".weights.h5": lambda path, model, stack: _read_keras_weights([path], model, stack),
    ".weights.json": lambda path, model, stack: _read_keras_weights(shards(path), model, stack),
    ".keras": _read_keras,
}
