"""Options that several commands share, and the models and images that they name.

They are parsed before Keras is imported: `--backend` chooses its backend, and `--help` is fast.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import keras_vitx as kv
from keras_vitx import backend
from keras_vitx.text import nearest


def _choose(name: str | None) -> str | None:
    backend.choose(name)
    return name


Backend = Annotated[
    Literal["tensorflow", "jax", "torch"] | None,
    Option(
        callback=_choose,
        metavar="BACKEND",
        help="tensorflow, jax or torch. Default: KERAS_BACKEND, else an installed one.",
    ),
]
ModelOrFile = Annotated[
    str,
    Argument(
        help="A size such as CaiT_XXS24 (see `keras-vitx list`), a .keras file, a directory "
        "written by `kv.save`, or hf://owner/repo.",
        metavar="MODEL",
    ),
]
Weights = Annotated[
    str | None,
    Option(
        metavar="WEIGHTS",
        help="Weights of a size: imagenet, a checkpoint's name, hf://owner/repo, a file, or none "
        "for random weights.",
    ),
]
Source = Annotated[
    str,
    Argument(
        help="fashion_mnist (the shipped sample), a directory with one sub-directory per class, "
        "tfds:NAME, or an .npz with x_train, y_train, x_test, y_test.",
        metavar="SOURCE",
    ),
]
Images = Annotated[
    list[Path],
    Argument(
        help="Image files, and directories that are searched recursively.",
        metavar="IMAGE|DIRECTORY",
    ),
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Csv = Annotated[bool, Option("--csv", help="Print CSV.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing output.")]
Strict = Annotated[bool, Option("--strict", help="Stop at an image that can't be decoded.")]


def is_size(model: str) -> bool:
    """Return whether `model` is the name of a size."""
    return model in kv.models.MODELS


def is_saved(model: str) -> bool:
    """Return whether `model` names a file, a directory or a repository."""
    return model.endswith(".keras") or model.startswith("hf://") or Path(model).is_dir()


def open_model(model: str, weights: str | None = None, trained: bool = False, **arguments: Any):
    """Return a model of a size, or load it from a file, directory or repository.

    A size without `weights` has random ones or, if `trained`, those of a checkpoint, preferably for
    ImageNet. Raises a ValueError for an unknown model, or `weights` for a saved one.
    """
    if not is_size(model):
        if not is_saved(model):
            hint = nearest(model, kv.models.MODELS)
            raise ValueError(f"{model!r} is not a size, a .keras file or a directory. {hint}")
        if weights is not None:
            raise ValueError(f"`--weights` applies to a size; {model!r} has its own weights.")
        return kv.load(model)
    if trained and weights is None:
        entries = kv.weights.checkpoints_of(model)
        if not entries:
            raise ValueError(f"No checkpoint of {model} is known: pass `--weights`.")
        has_imagenet = any(entry.dataset == "imagenet" for entry in entries)
        weights = "imagenet" if has_imagenet else entries[0].name
    return kv.create_model(model, weights=None if weights == "none" else weights, **arguments)


def image_files_of(paths: Sequence[Path]) -> list[Path]:
    """Return files and the images in directories; raises a ValueError if a directory has none."""
    from keras_vitx.data.sources.directories import image_files

    files = []
    for path in paths:
        images = image_files(path) if path.is_dir() else [path]
        if not images:
            raise ValueError(f"The directory {path} has no images.")
        files += images
    return files
