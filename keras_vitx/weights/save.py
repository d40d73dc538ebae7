"""Saving weights with the names of PyTorch checkpoints."""

import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from keras_vitx.files import atomic_write
from keras_vitx.weights.convert import to_checkpoint
from keras_vitx.weights.description import metadata_of
from keras_vitx.weights.torch_files import import_torch


def save_safetensors(
    model,
    path: str | os.PathLike,
    dtype: str | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Save a model's weights as safetensors, with the names of PyTorch checkpoints.

    The metadata holds the model's name, family, grid, class names and preprocessing, which loading
    restores.

    Args:
        model: A built model of this package.
        path: Path of the file, ending in ".safetensors". It is written atomically.
        dtype: None for float32, or "float16" for half the size, where vectors (biases, scales,
            statistics) stay in float32.
        metadata: Additional string metadata, such as the provenance.

    Raises:
        ValueError: if an argument is invalid, or a weight overflows float16.
        OSError: if the file can't be written.
    """
    path = _check_path(path, ".safetensors")
    if dtype not in (None, "float32", "float16"):
        raise ValueError(f'`dtype` must be None, "float32" or "float16". Received: {dtype!r}.')
    model_metadata, metadata = metadata_of(model), metadata or {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"`metadata` must be strings by name. Received: {key!r}: {value!r}.")
        if key in model_metadata:
            raise ValueError(f"`metadata` must not have the model's {key!r}.")
    tensors = to_checkpoint(model)
    if dtype == "float16":
        # Re-attention has variances of 1e-6, below float16's normal numbers, and means and biases
        # near 0.5 that cancel to differences of 1e-3.
        for name, array in tensors.items():
            if array.ndim < 2:
                continue
            with np.errstate(over="ignore"):
                half = array.astype("float16")
            if np.isinf(half).any():
                raise ValueError(f"dtype='float16' can't hold {name}, beyond 65504.")
            tensors[name] = half
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata={**model_metadata, **metadata})
        # safetensors creates files that only their owner can read.
        temporary.chmod(0o644)


def save_torch(model, path: str | os.PathLike) -> None:
    """Save a model's weights as a PyTorch state dict.

    Args:
        model: A built model of this package.
        path: Path of the file, ending in ".pth". It is written atomically.

    Raises:
        ValueError: if `path` has another suffix.
        ImportError: if PyTorch isn't installed.
        OSError: if the file can't be written.
    """
    path = _check_path(path, ".pth")
    torch = import_torch(f"Writing {path}")
    state = {name: torch.from_numpy(array) for name, array in to_checkpoint(model).items()}
    with atomic_write(path) as temporary:
        torch.save(state, temporary)


def _check_path(path: str | os.PathLike, suffix: str) -> Path:
    path = Path(path).expanduser()
    if path.suffix != suffix:
        raise ValueError(f"`path` must end in {suffix}. Received: {str(path)!r}.")
    return path
