"""Labeled sets of images from all supported sources."""

import os
from collections.abc import Iterable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Literal

from keras_vitx.checks import check_argument
from keras_vitx.data.sources.arrays import FASHION_MNIST, load_arrays, load_npz
from keras_vitx.data.sources.dataset import Dataset, Split, hold_out
from keras_vitx.data.sources.directories import load_directory, load_real
from keras_vitx.data.sources.tables import load_table
from keras_vitx.data.sources.tfds import load_tfds
from keras_vitx.data.sources.tfrecords import load_tfrecords, shards_of

__all__ = ["Dataset", "Split", "load_dataset", "load_real"]

SUPPORTED = (
    'Expected "fashion_mnist", "tfds:NAME", a directory with one sub-directory per class, a .csv '
    "file or pandas DataFrame of files and labels, an .npz file, "
    'TFRecord shards ("data/*.tfrecord"), or arrays: (images, labels) or ((x_train, y_train), '
    "(x_val, y_val)), which a data set of Hugging Face must become, too."
)


def load_dataset(
    source,
    *,
    validation_split: float | Iterable[str | int] = 0.1,
    strict: bool = False,
    seed: int = 0,
    data_dir: str | os.PathLike | None = None,
    splits: bool | None = None,
    separator: str | None = None,
    first_label: Literal[0, 1] | None = None,
) -> Dataset:
    """Load and validate a labeled set of images.

    If the source has no validation images, some are held out from its training images. Test images
    are never used for validation.

    Images are uint8 and keep their original sizes. Files are decoded on access; loading reads names
    and labels only. `keras-vitx list --damaged` finds damaged files.

    Args:
        source: One of
            "fashion_mnist", the sample shipped with the package (6,000 images);
            a directory with one sub-directory per class, or with directories of splits that hold
            such sub-directories: `train/` or `training/`; `val/`, `valid/`, `validation/`, `dev/`
            or `eval/`; `test/` or `testing/`, in any case;
            a .csv or .tsv file, or a DataFrame, with the columns `file` and `label`, or one column
            per class;
            "tfds:NAME", a dataset of tensorflow-datasets with one label per image;
            an .npz file with x_train and y_train, x_val and y_val, x_test and y_test (or
            train_images and train_labels, ..., as MedMNIST), some of them, and class_names;
            TFRecord shards, if TensorFlow is installed: a file, a pattern such as
            "imagenet/*-of-*", or a directory of files with ".tfrecord" in their names, with the
            features "image" and "label" or "image/encoded" and "image/class/label";
            arrays, (images, labels) or ((x_train, y_train), (x_val, y_val)), with (x_test, y_test)
            as an optional third pair. Images are (n, height, width) or (n, height, width,
            channels), uint8 or floats in 0..1. Labels are integers (n,), one-hot, soft or multi-hot
            labels in 0..1 (n, classes), or floats as regression targets.
        validation_split: Fraction of each class to hold out from the training images if the source
            has no validation images; 0 for no validation. Or the names of the images to hold out,
            as in `Split.names` and in the list of a run.
        strict: Whether an image file of a format that Pillow can't read is an error. If not, it is
            listed in `skipped`, and a warning is logged.
        seed: Seed of the validation split.
        data_dir: The directory where tensorflow-datasets stores its files.
        splits: Whether the sub-directories of a directory are splits (True) or classes (False);
            None decides by their names, and raises an error if they could be either.
        separator: What separates several labels of an image in a table; None for ";".
        first_label: The label of the first class in TFRecords with "image/class/label", 0 or 1;
            None decides by the names of classes in them, and raises an error if there are none.

    Raises:
        ValueError: if the source is not supported, has fewer than two classes, or has labels out of
            range.
        OSError: if a file can't be read.
        ImportError: if tensorflow-datasets or TensorFlow is required but not installed.
    """
    is_names = isinstance(validation_split, Iterable) and not isinstance(validation_split, str)
    if not is_names and not (isinstance(validation_split, Real) and 0 <= validation_split < 1):
        raise ValueError(
            "`validation_split` must be a number in [0, 1), or names of images. "
            f"Received: {validation_split!r}."
        )
    check_argument("first_label", first_label, Literal[0, 1] | None)
    dataset = _load(source, strict, data_dir, splits, separator, first_label)
    if dataset.validation is None and dataset.train is not None:
        train, validation = hold_out(dataset.train, validation_split, seed)
        dataset = replace(dataset, train=train, validation=validation)
    return dataset


def _load(source, strict, data_dir, splits, separator, first_label) -> Dataset:
    if hasattr(source, "to_csv") and hasattr(source, "iloc"):
        return load_table(source, separator)
    if isinstance(source, (tuple, list)):
        return load_arrays(tuple(source))
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(
            f"`source` must be of a known kind. Received: {type(source).__name__}. {SUPPORTED}"
        )
    name, path = str(source), Path(source).expanduser()
    if name == "fashion_mnist":
        return load_npz(FASHION_MNIST, name)
    if name.startswith("tfds:"):
        return load_tfds(name.removeprefix("tfds:"), data_dir)
    suffix = path.suffix.lower()
    if suffix in (".npz", ".csv", ".tsv") and path.is_file():
        return load_npz(path, name) if suffix == ".npz" else load_table(path, separator)
    if shards := shards_of(path):
        return load_tfrecords(shards, name, first_label)
    if path.is_dir():
        return load_directory(path, strict, splits)
    reason = "is not a directory, an .npz or a .csv file" if path.exists() else "does not exist"
    raise ValueError(
        f"`source` must be of a known kind. Received: {name!r}, which {reason}. {SUPPORTED}"
    )
