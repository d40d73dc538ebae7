"""A model's weights in files that PyTorch can read, too."""

import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from keras_vitx.files import written_whole
from keras_vitx.text import needs_extra
from keras_vitx.weights.convert import to_checkpoint
from keras_vitx.weights.description import describe
from keras_vitx.weights.names import checkpoint_name, shape_in_checkpoint


def save_safetensors(
    model,
    path: str | os.PathLike,
    dtype: str | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Save a model's weights as safetensors, under the names of PyTorch's checkpoints.

    The file also says the model's name, family, grid, class names and
    preprocessing, so that loading it restores them.

    Args:
        model: A built model of the zoo.
        path: Where to write; ends in ".safetensors". The file is written whole
            or not at all.
        dtype: None for float32, or "float16" for half the size.
        metadata: More strings to keep in the file, such as its provenance.

    Raises:
        ValueError: when an argument is wrong, or a weight is too large for
            float16.
        OSError: when the file can't be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path should end in .safetensors, not {str(path)!r}.")
    if dtype not in (None, "float32", "float16"):
        raise ValueError(f'dtype should be None, "float32" or "float16", not {dtype!r}.')
    described = describe(model).to_metadata()
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata should be strings by name; {key!r} is {value!r}.")
        if key in described:
            raise ValueError(f"metadata: {key!r} is taken by the model's own description.")
    tensors = to_checkpoint(model)
    if dtype == "float16":
        largest = float(np.finfo("float16").max)
        for name, array in tensors.items():
            if np.abs(array).max(initial=0) > largest:
                raise ValueError(f"dtype='float16' can't hold {name}, beyond {largest:g}.")
            tensors[name] = array.astype("float16")
    with written_whole(path) as unfinished:
        save_file(tensors, unfinished, metadata={**described, **(metadata or {})})
        # safetensors lets nobody but the writer read it.
        unfinished.chmod(0o644)


def save_torch(model, path: str | os.PathLike) -> None:
    """Save a model's weights as PyTorch's own kind of file, which PyTorch has to write.

    Args:
        model: A built model of the zoo.
        path: Where to write; ends in ".pth". The file is written whole or not at all.

    Raises:
        ValueError: when `path` ends otherwise.
        ImportError: when PyTorch isn't installed.
        OSError: when the file can't be written.
    """
    path = Path(path)
    if path.suffix != ".pth":
        raise ValueError(f"path should end in .pth, not {str(path)!r}.")
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            needs_extra(f"Writing {path}, a PyTorch file, needs PyTorch", "torch")
        ) from error
    state = {name: torch.from_numpy(array) for name, array in to_checkpoint(model).items()}
    with written_whole(path) as unfinished:
        torch.save(state, unfinished)


def has_checkpoint_names(model) -> bool:
    """Tell whether PyTorch's checkpoints have a name for each of a model's variables.

    They don't for what LoRA and quantization add, nor for some layers of another family.

    Args:
        model: A built model of the zoo.
    """
    names = set()
    for variable in model.weights:
        try:
            name, layout = checkpoint_name(variable.path, model.family)
            if layout == "kernel":
                shape_in_checkpoint(tuple(variable.shape), layout)
        except (ValueError, KeyError):
            return False
        names.add(name)
    return len(names) == len(model.weights)
