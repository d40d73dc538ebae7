"""Weights in files of every known kind, opened and read one array at a time."""

import argparse
import contextlib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_vitx.weights.description import Description, describe


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

    Raises:
        ValueError: when the file is damaged, isn't of the kind that its suffix
            says, or holds anything but arrays.
        ImportError: when a PyTorch file is given and PyTorch isn't installed.
    """
    kind = suffix_of(path)
    if path.stat().st_size == 0:
        raise ValueError("The file is empty.")
    with KINDS[kind](path, model) as tensors:
        if not tensors.shapes:
            raise ValueError("The file holds no arrays.")
        yield tensors


def suffix_of(path: Path) -> str | None:
    """Return the known suffix of a path, None when it bears no such suffix."""
    return next((suffix for suffix in KINDS if path.name.endswith(suffix)), None)


@contextlib.contextmanager
def _safetensors(path: Path, model) -> Iterator[Tensors]:
    try:
        file = safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(f"The file is damaged or no safetensors file ({error}).") from error
    with file:
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
            f'{path} is a PyTorch file; reading it needs "pip install keras-vitx[torch]".'
        ) from error
    try:
        # Training scripts keep their parsed arguments beside the weights. With
        # mmap, a file's arrays come from the disk as they are asked for.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # The unpickler passes on whatever a bad file provokes.
        raise ValueError(
            "The file is refused: it is damaged, or holds Python objects other than tensors, "
            "which could run code when read."
        ) from error
    tensors = _unwrapped(content)
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"The file is no plain checkpoint, tensors by name: {name!r} is "
                f"a {type(value).__name__}."
            )
    names = _without_prefixes(tensors)
    yield Tensors(
        shapes={name: tuple(tensors[old].shape) for name, old in names.items()},
        dtypes={name: str(tensors[old].dtype) for name, old in names.items()},
        read=lambda name: tensors[names[name]].detach().float().numpy(),
    )


# Where training scripts keep the weights in their file; averaged ones first.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")

# What wrappers of modules put before every name.
PREFIXES = ("module.", "model.", "_orig_mod.")


def _unwrapped(content: Any) -> dict[str, Any]:
    while isinstance(content, dict):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {str(name): value for name, value in content.items()}
        content = inner
    raise ValueError(
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
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError("The file is damaged or no Keras weights file.") from error
    with file:
        # Keras numbers a layer's own variables in their order.
        order: dict[str, list[str]] = {}
        for variable in model.weights:
            order.setdefault(variable.path.rpartition("/")[0], []).append(variable.path)
        arrays = {}
        for layer, number, array in _layer_arrays(file, ()):
            paths = order.get(layer, [])
            known = number.isdecimal() and int(number) < len(paths)
            arrays[paths[int(number)] if known else f"{layer}/{number}"] = array
        yield Tensors(
            shapes={name: array.shape for name, array in arrays.items()},
            dtypes={
                name: array.attrs.get("dtype", str(array.dtype)) for name, array in arrays.items()
            },
            read=lambda name: _h5_array(arrays[name]),
            native=True,
        )


def _layer_arrays(group: h5py.Group, names: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
    """Walk a Keras weights file: (layer's path, number, array), from the layers' names."""
    own = group.get("vars")
    # The root bears the model's name, which variables' paths don't have.
    if own is not None and group.name != "/":
        names = (*names, str(own.attrs.get("name", "")))
    for number, array in (own or {}).items():
        # The only whole numbers in a model are the states of random generators.
        if array.dtype.kind not in "iu":
            yield "/".join(names), number, array
    for key, child in group.items():
        is_optimizer = group.name == "/" and key == "optimizer"
        if key != "vars" and isinstance(child, h5py.Group) and not is_optimizer:
            yield from _layer_arrays(child, names)


def _h5_array(array: h5py.Dataset) -> np.ndarray:
    value = np.asarray(array)
    if array.attrs.get("dtype") == "bfloat16":
        value = value.view(ml_dtypes.bfloat16)
    return value.astype("float32")


@contextlib.contextmanager
def _keras(path: Path, model) -> Iterator[Tensors]:
    try:
        saved = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras passes on whatever a bad file provokes.
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"Keras can't read the file: {cause}") from error
    variables = {variable.path: variable for variable in saved.weights}
    yield Tensors(
        shapes={name: tuple(variable.shape) for name, variable in variables.items()},
        dtypes={
            name: keras.backend.standardize_dtype(variable.dtype)
            for name, variable in variables.items()
        },
        read=lambda name: np.asarray(
            keras.ops.convert_to_numpy(variables[name].value), dtype="float32"
        ),
        native=True,
        description=describe(saved),
    )


KINDS = {
    ".safetensors": _safetensors,
    ".pth": _torch,
    ".pt": _torch,
    ".bin": _torch,
    ".pth.tar": _torch,
    ".weights.h5": _keras_weights,
    ".keras": _keras,
}
