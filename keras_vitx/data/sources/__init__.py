"""Opening labelled sets of images of any supported kind."""

import os
from numbers import Real
from pathlib import Path

from keras_vitx.data.sources.arrays import open_arrays, open_fashion_mnist, open_npz
from keras_vitx.data.sources.folders import open_folder
from keras_vitx.data.sources.parts import Part, Source
from keras_vitx.data.sources.real import open_real
from keras_vitx.data.sources.tfds import open_tfds
from keras_vitx.data.sources.tfrecords import open_tfrecords, shards_of

__all__ = ["Part", "Source", "open_real", "open_source"]

KINDS = (
    'Expected "fashion_mnist", "tfds:NAME", a folder with one sub-folder per class, an .npz file, '
    'TFRecord shards ("data/*.tfrecord"), or arrays: (images, labels) or ((x_train, y_train), '
    "(x_val, y_val))."
)


def open_source(
    source,
    *,
    validation_split: float = 0.1,
    strict: bool = False,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
) -> Source:
    """Open and check a labelled set of images.

    If the source has no validation part, images are split off from its training part. A
    test part is never used for validation.

    Images are uint8 and keep their original sizes. Those of a folder or of
    tensorflow-datasets are decoded lazily from their files.

    Args:
        source: One of
            "fashion_mnist", the sample shipped with the package: 5,000 training
            images (28, 28, 1) and 1,000 test images of ten classes;
            a path to a folder with one sub-folder per class, or with `train/`
            and optionally `val/` (or `validation/`) and `test/` that hold such
            sub-folders;
            "tfds:NAME", any dataset of tensorflow-datasets with one label per image,
            downloaded if necessary;
            a path to an .npz file with x_train and y_train, and optionally x_val
            and y_val, x_test and y_test, and class_names;
            TFRecord shards: a file, a pattern such as "imagenet/*-of-*", or a
            folder of files with ".tfrecord" in their names, with the features
            "image" and "label" or "image/encoded" and "image/class/label";
            arrays, (images, labels) or ((x_train, y_train), (x_val, y_val)), with
            (x_test, y_test) as an optional third pair. Images are (n, height,
            width) or (n, height, width, channels), uint8 or floats in 0..1.
            Labels are integers (n,), one-hot, soft or multi-hot labels in 0..1
            (n, classes), or other floats as regression targets.
        validation_split: Fraction of each class that is split off from the training
            part if the source has no validation part. 0 means no validation.
        strict: Whether an image file that can't be decoded is an error. If not, it is
            skipped, listed in `skipped`, and a warning is logged.
        seed: Seed of the validation split.
        data_dir: The folder where tensorflow-datasets stores its files.

    Raises:
        ValueError: if the source is of no supported kind or layout, has fewer than two
            classes, or has labels out of range.
        OSError: if a file can't be read or, with `strict`, an image can't be decoded.
        ImportError: if tensorflow-datasets is required but not installed.
    """
    if not isinstance(validation_split, Real) or not 0 <= validation_split < 1:
        raise ValueError(
            f"validation_split: expected a number from 0 to less than 1, got {validation_split!r}."
        )
    if isinstance(source, (tuple, list)):
        return open_arrays(tuple(source), validation_split, seed)
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"source: got {type(source).__name__}. {KINDS}")
    if source == "fashion_mnist":
        return open_fashion_mnist(validation_split, seed)
    if str(source).startswith("tfds:"):
        return open_tfds(str(source)[len("tfds:") :], validation_split, seed, data_dir)
    path = Path(source).expanduser()
    if path.suffix != ".npz" and (shards := shards_of(source)):
        return open_tfrecords(shards, str(source), validation_split, seed)
    if path.is_dir():
        return open_folder(path, validation_split, strict, seed)
    if path.is_file() and path.suffix == ".npz":
        return open_npz(path, validation_split, seed)
    found = "is not an .npz file" if path.exists() else "does not exist"
    raise ValueError(f"source: {str(source)!r} {found}. {KINDS}")
