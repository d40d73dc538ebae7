"""Reading weights files, one array at a time.

safetensors, PyTorch with `weights_only=True` and h5py read them, so that no code in a file runs.
"""

import contextlib
import json
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vitx.positions import Grid
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.text import needs_extra
from keras_vitx.weights.names import is_head
from keras_vitx.weights.transformers import REGISTERS, prefix_of, timm_names

# Every network has one of these behind its blocks; what precedes the name is a wrapper's.
NORM = re.compile(r"((?:(?!.*\bblocks\.).+\.)?)(?:(?:fc_)?norm|ln_post)\.weight")

METADATA = ("size", "grid", "class_names", "preprocessing")


class StoredArray(NamedTuple):
    """An array of an open file, read on demand."""

    shape: tuple[int, ...]
    dtype: str  # In the spelling of the format.
    read: Callable[[], np.ndarray]


class WeightsFile(NamedTuple):
    """An open file of weights, and what is known of the model that it is of."""

    arrays: dict[str, StoredArray]
    in_keras: bool = False  # Names and layouts are Keras's, and "LAYER/grid" is that of positions.
    square: bool = False  # All images were square.
    headless: bool = False  # There is no classifier.
    size: str | None = None  # Name of the constructor.
    grid: Grid | None = None
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    activation: str | None = None  # Of the MLPs, by Transformers' name.
    antialias: bool = True  # Whether positions of another grid are resampled as in timm.

    @property
    def pooling(self) -> str | None:
        """`"token_avg"` where the classifier reads twice the width (DINOv2); None elsewhere."""
        head, norm = (self.arrays.get(name) for name in ("head.weight", "norm.weight"))
        is_twice = head and norm and head.shape[-1] == 2 * norm.shape[-1]
        return "token_avg" if is_twice else None

    @property
    def classes(self) -> int | None:
        """Number of classes of the classifier; None without, or if its parts differ in it."""
        axis = -1 if self.in_keras else 0
        counts = {array.shape[axis] for name, array in self.arrays.items() if is_head(name)}
        return counts.pop() if len(counts) == 1 else None

    def grid_of(self, layer: str) -> Grid | None:
        """Return the grid of the positions of a layer, or None if the file does not tell it."""
        array = self.arrays.get(f"{layer}/grid") if self.in_keras else None
        return self.grid if array is None else tuple(array.read().tolist())


def suffix_of(name: str) -> str | None:
    """Return the supported suffix of a file name, or None."""
    return next((suffix for suffix in READERS if name.endswith(suffix)), None)


@contextlib.contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """Open a weights file; its suffix determines the format.

    Raises a ValueError if it is damaged, of another format or holds two networks, an OSError if it
    doesn't exist, and an ImportError for a PyTorch file without PyTorch.
    """
    path.open("rb").close()
    with contextlib.ExitStack() as stack:
        try:
            file = READERS[suffix_of(path.name)](path, stack)
        except ImportError:
            raise
        except Exception as error:  # The libraries raise whatever a bad file provokes.
            cause = f"{type(error).__name__}: {error}"
            raise ValueError(f"The file {path} can't be read ({cause:.500}).") from error
        yield file


def _read_safetensors(path: Path, stack: contextlib.ExitStack) -> WeightsFile:
    file = stack.enter_context(safe_open(path, framework="numpy"))
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        array = file.get_slice(name)
        read = partial(file.get_tensor, name)
        arrays[name] = StoredArray(tuple(array.get_shape()), array.get_dtype(), read)
    metadata = file.metadata() or {}
    if metadata.get("library") != "keras_vitx":
        return _of_one_network(arrays)
    if any(".fc1_g." in name for name in arrays):
        arrays = _in_timm(arrays)
    values = {name: json.loads(metadata[name]) for name in METADATA if name in metadata}
    return WeightsFile(arrays, **_about(**values))


def _read_torch(path: Path, stack: contextlib.ExitStack) -> WeightsFile:
    try:
        import torch
    except ImportError as error:
        raise ImportError(needs_extra(f"{path.name} needs PyTorch", "torch")) from error

    arrays = {}

    def collect(content: dict, prefix: str) -> None:
        for name, value in content.items():
            if isinstance(value, dict):
                collect(value, f"{prefix}{name}.")
            elif isinstance(value, torch.Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                read = partial(_to_numpy, value, torch.float32)
                arrays[f"{prefix}{name}"] = StoredArray(tuple(value.shape), dtype, read)

    # timm's and DeiT's scripts keep their arguments beside the weights. Before PyTorch 1.6, files
    # were no archives.
    with torch.serialization.safe_globals([Namespace]):
        mmap = zipfile.is_zipfile(path)
        collect(torch.load(path, map_location="cpu", weights_only=True, mmap=mmap), "")
    return _of_one_network(arrays)


def _to_numpy(tensor: Any, float32: Any) -> np.ndarray:
    """Return a copy: JAX would keep using the memory-mapped file."""
    return tensor.detach().to(dtype=float32, copy=True).numpy()


def _read_h5(source: Any, stack: contextlib.ExitStack) -> WeightsFile:
    file = stack.enter_context(h5py.File(source, "r"))
    names, arrays = {}, {}

    def collect(path: str, item: h5py.Group | h5py.Dataset) -> None:
        layer, _, number = f"/{path}".rpartition("/vars")
        if isinstance(item, h5py.Group) and path.endswith("/vars"):
            # The root has the model's name, which is not part of the variables' paths.
            names[layer] = str(item.attrs.get("name", ""))
        elif isinstance(item, h5py.Dataset) and number and not layer.startswith("/optimizer"):
            if item.external or item.is_virtual:
                raise ValueError(f"{path} is in another file")
            # The states of random generators are integers, not weights.
            if item.dtype.kind not in "iu" or number == "/grid":
                arrays[layer, number] = item

    file.visititems(collect)  # It follows no link to another file.
    return WeightsFile(
        {
            "/".join([*_names_of(layer, names), number.strip("/")]): _h5_array(array)
            for (layer, number), array in arrays.items()
        },
        in_keras=True,
    )


def _names_of(layer: str, names: dict[str, str]) -> Iterator[str]:
    """Iterate over the names of the layers around a variable, and of its own, in order."""
    parts = layer.split("/")
    places = ("/".join(parts[: end + 1]) for end in range(len(parts)))
    return (names[place] for place in places if names.get(place))


def _h5_array(array: h5py.Dataset) -> StoredArray:
    # h5py has no bfloat16; Keras stores the bytes.
    is_bfloat16 = array.attrs.get("dtype") == "bfloat16"
    dtype = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else array.dtype
    return StoredArray(array.shape, str(dtype), lambda: array[()].view(dtype))


def _read_keras(path: Path, stack: contextlib.ExitStack) -> WeightsFile:
    archive = stack.enter_context(zipfile.ZipFile(path))
    weights = stack.enter_context(archive.open("model.weights.h5"))
    # The model of the config is not built.
    config = json.loads(archive.read("config.json"))["config"]
    known = {name: config.get(name) for name in ("size", "class_names", "preprocessing")}
    return _read_h5(weights, stack)._replace(**_about(**known))


READERS = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".pth.tar"), _read_torch),
    ".weights.h5": _read_h5,
    ".keras": _read_keras,
}


def _about(size=None, grid=None, class_names=None, preprocessing=None) -> dict[str, Any]:
    """Return the fields of a file from JSON."""
    return {
        "size": size,
        "grid": grid and tuple(grid),
        "class_names": class_names and tuple(class_names),
        "preprocessing": preprocessing and Preprocessing.of(preprocessing),
    }


def _of_one_network(arrays: dict[str, StoredArray]) -> WeightsFile:
    """Return the network in a file, its arrays by timm's names, without a wrapper's prefix.

    Training scripts keep more beside it. Of several copies, averaged weights are taken.
    """
    arrays = {name: array for name, array in arrays.items() if 0 not in array.shape}
    if (prefix := prefix_of(arrays)) is not None:
        return WeightsFile(_from_transformers(arrays), antialias=prefix + REGISTERS in arrays)
    prefixes = dict.fromkeys(match[1] for name in arrays if (match := NORM.fullmatch(name)))
    prefixes = [p for p in prefixes if not any(p != q and p.startswith(q) for q in prefixes)]
    # Of I-JEPA, the target encoder, which the paper evaluates.
    averaged = [
        name for name in prefixes if re.search("(?<![a-z])(ema|target_encoder)(?![a-z])", name)
    ]
    prefix, *others = averaged or prefixes or [""]
    if others:
        raise ValueError(f"it holds weights more than once: {prefix}*, {', '.join(others)}*")
    arrays = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    if "rope_embed.periods" in arrays:  # Meta's DINOv3.
        arrays = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", n): a for n, a in arrays.items()}
        masks = [name for name in arrays if name.endswith(".bias_mask")]
        arrays = {name: array for name, array in arrays.items() if name not in masks}
        for bias in (name.removesuffix("_mask") for name in masks):
            arrays |= _of_queries_and_values(bias.removesuffix("qkv.bias"), arrays.pop(bias))
    return WeightsFile(_as_vectors(_in_timm(arrays), "register_tokens" in arrays))


def _of_queries_and_values(name: str, bias: StoredArray) -> dict[str, StoredArray]:
    """Return the parts of a bias of which that of the keys is masked."""
    dim = bias.shape[0] // 3
    return {f"{name}q_bias": _rows(bias, 0, dim), f"{name}v_bias": _rows(bias, 2 * dim, 3 * dim)}


def _in_timm(arrays: dict[str, StoredArray], prefix: str | None = None) -> dict[str, StoredArray]:
    """Return arrays by timm's names; see `timm_names`."""
    return {
        name: _joined([arrays[part] for part in parts])
        for name, parts in timm_names(arrays, prefix).items()
    }


def _as_vectors(joined: dict[str, StoredArray], registers: bool) -> dict[str, StoredArray]:
    """Return arrays with the tokens' in timm's shapes, and, with registers, as timm places them."""
    for name in {"pos_embed", "cls_token"} & joined.keys():  # CLIP's and SigLIP's.
        array = joined[name]
        shape = (1,) * (3 - len(array.shape)) + array.shape
        read = partial(lambda read, shape: read().reshape(shape), array.read, shape)
        joined[name] = array._replace(shape=shape, read=read)
    if registers and "pos_embed" in joined:
        joined |= with_positions(joined, ["cls_token"], "pos_embed")
    return joined


def with_positions(
    arrays: dict[str, StoredArray], tokens: Sequence[str], positions: str
) -> dict[str, StoredArray]:
    """Return tokens with positions of their own added, as in timm, and the positions left."""
    stored, count = arrays[positions], len(tokens)
    first, places, dim = stored.shape
    left = (first, places - count, dim)
    placed = {positions: stored._replace(shape=left, read=lambda: stored.read()[:, count:])}
    for at, name in enumerate(tokens):
        own = partial(lambda token, at: token() + stored.read()[:, [at]], arrays[name].read, at)
        placed[name] = arrays[name]._replace(read=own)
    return placed


def _from_transformers(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """Return the arrays of a Transformers checkpoint by timm's names."""
    prefix = prefix_of(arrays)
    joined = _as_vectors(_in_timm(arrays, prefix), prefix + REGISTERS in arrays)
    for kind in ("weight", "bias"):
        if joint := joined.pop(f"attn_pool.in_proj_{kind}", None):
            dim = joint.shape[0] // 3
            joined[f"attn_pool.q.{kind}"] = _rows(joint, 0, dim)
            joined[f"attn_pool.kv.{kind}"] = _rows(joint, dim, 3 * dim)
    return joined


def _rows(array: StoredArray, start: int, stop: int) -> StoredArray:
    """Return some rows of an array."""
    shape = (stop - start, *array.shape[1:])
    return array._replace(shape=shape, read=lambda: array.read()[start:stop])


def _joined(parts: Sequence[StoredArray]) -> StoredArray:
    """Return arrays as one, along the first axis."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return StoredArray(
        shape, parts[0].dtype, lambda: np.concatenate([part.read() for part in parts])
    )
