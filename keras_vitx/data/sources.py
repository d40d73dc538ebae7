"""Opening a labelled set of images, of whatever kind."""

import os
from pathlib import Path

from keras_vitx.data.arrays import open_arrays, open_fashion_mnist, open_npz
from keras_vitx.data.folders import open_folder
from keras_vitx.data.parts import Part, Source
from keras_vitx.data.tfds import open_tfds

__all__ = ["Part", "Source", "open_source"]

KINDS = (
    'Expected "fashion_mnist", "tfds:NAME", a folder with one sub-folder a class, an .npz file, '
    "or arrays: (images, labels) or ((x_train, y_train), (x_val, y_val))."
)


def open_source(
    source,
    *,
    validation_split: float = 0.1,
    strict: bool = False,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
) -> Source:
    """Open a labelled set of images, check it, and cut it in two parts.

    Images stay as they are, in their own sizes, as uint8. Those of a folder or
    of tensorflow-datasets stay in their files and are decoded when asked for.

    Args:
        source: One of
            "fashion_mnist", the sample shipped with the package: 5,000 images
            (28, 28, 1) to train on and 1,000 to validate on, of ten classes;
            a path to a folder with one sub-folder a class, or with `train/` and
            `val/` (or `validation/`, or `test/`) that hold such sub-folders;
            "tfds:NAME", any dataset of tensorflow-datasets of images with a
            label each, downloaded if need be;
            a path to an .npz file with x_train, y_train, x_test and y_test;
            arrays, (images, labels) or ((x_train, y_train), (x_val, y_val)):
            images (n, height, width) or (n, height, width, channels), of uint8
            or of floats in 0..1, and integer labels (n,).
        validation_split: Where the source isn't cut already, the share of each
            class that is set aside for validation.
        strict: Whether an image file that can't be decoded is an error. If not,
            it is left out, noted in `skipped`, and one log line says so.
        seed: The seed of that choice.
        data_dir: Where tensorflow-datasets keeps its files.

    Raises:
        ValueError: when the source isn't of these kinds, is laid out otherwise,
            has less than two classes, or has labels out of range.
        OSError: when a file can't be read; with `strict`, when an image can't.
        ImportError: when tensorflow-datasets is needed and missing.
    """
    if isinstance(source, (tuple, list)):
        return open_arrays(tuple(source), validation_split, seed)
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"source: got {type(source).__name__}. {KINDS}")
    if source == "fashion_mnist":
        return open_fashion_mnist()
    if str(source).startswith("tfds:"):
        return open_tfds(str(source)[len("tfds:") :], validation_split, seed, data_dir)
    path = Path(source).expanduser()
    if path.is_dir():
        return open_folder(path, validation_split, strict, seed)
    if path.is_file() and path.suffix == ".npz":
        return open_npz(path, validation_split, seed)
    found = "is not an .npz file" if path.exists() else "does not exist"
    raise ValueError(f"source: {str(source)!r} {found}. {KINDS}")
