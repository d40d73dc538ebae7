"""The weights file of this package: safetensors with PyTorch's names, and what a model is."""

import json
import os

import numpy as np
from safetensors.numpy import save

from keras_vitx.checks import check
from keras_vitx.files import atomic_write
from keras_vitx.outputs import class_names_of
from keras_vitx.weights.convert import grid_of, to_checkpoint

# "pt" marks the names and layouts as those of PyTorch.
FORMAT = {"format": "pt", "library": "keras_vitx"}


def save_safetensors(
    model,
    path: str | os.PathLike,
    dtype: str | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Save a model's weights as safetensors, by the names of PyTorch checkpoints.

    `weights=` of a size reads the file back, with its class names and preprocessing, on any
    backend, as a path or, uploaded as `model.safetensors`, as `"hf://owner/repo"`. A variable that
    no checkpoint has, of a layer of your own, is stored by its path.

    The metadata are JSON strings: `size`, the constructor's name, and `arguments`, those it was
    called with, as far as JSON can hold them; `class_names`; `preprocessing`; and `grid`, the rows
    and columns of patches.

    Args:
        model: A built model of this package.
        path: Path of the file, ending in ".safetensors". It is replaced as a whole.
        dtype: None for float32, or "float16" for half the size, where vectors (biases, scales,
            statistics) stay in float32.
        metadata: Additional string metadata, such as how the model was trained.

    Raises:
        ValueError: if `path` has another suffix, or a weight overflows float16.
        OSError: if the file can't be written.
    """
    check(str(path).endswith(".safetensors"), "`path` must end in .safetensors.", str(path))
    check(dtype in (None, "float16"), "`dtype` must be None or 'float16'.", dtype)
    tensors = to_checkpoint(model)
    for name, array in tensors.items():
        # Re-attention has variances of 1e-6, below float16's normal numbers, and means and biases
        # near 0.5 that cancel to differences of 1e-3.
        if dtype and array.ndim > 1:
            rule = f"`dtype` must be None for {name}, which has numbers beyond 65504."
            check(np.abs(array).max() <= np.finfo("float16").max, rule, dtype)
            tensors[name] = array.astype("float16")
    with atomic_write(path) as temporary:
        # In memory first: `save_file` ignores the umask, and a full disk is no OSError to it.
        temporary.write_bytes(save(tensors, {**FORMAT, **metadata_of(model), **(metadata or {})}))


def metadata_of(model) -> dict[str, str]:
    """Return what a file says of a model, as JSON strings."""
    values = {
        "size": model.size,
        "arguments": {**json.loads(model.arguments or "{}"), "input_shape": model.input_shape[1:]},
        "grid": grid_of(model),
        "class_names": class_names_of(model),
        "preprocessing": model.network_preprocessing and model.network_preprocessing.to_dict(),
    }
    return {name: json.dumps(value) for name, value in values.items()}
