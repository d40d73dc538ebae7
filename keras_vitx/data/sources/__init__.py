"""Labeled sets of images from all supported sources."""

import os
from collections.abc import Iterable
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Annotated

from keras_vitx.checks import check, check_argument
from keras_vitx.data.sources.arrays import FASHION_MNIST, load_arrays, load_npz
from keras_vitx.data.sources.dataset import Dataset, Split
from keras_vitx.data.sources.directories import load_directory
from keras_vitx.data.sources.holding_out import fraction_of, hold_out
from keras_vitx.data.sources.tables import from_files, load_csv
from keras_vitx.data.sources.tfds import load_tfds

__all__ = ["Dataset", "Split", "from_files", "load_dataset"]


def load_dataset(
    source,
    *,
    validation_split: float | Iterable[str | int] = 0.0,
    seed: int = 0,
    strict: bool = False,
    fraction: float = 1.0,
) -> Dataset:
    """Open a labeled set of images.

    Images are uint8 and keep their original sizes. Files are decoded on access.

    Args:
        source: One of
            "fashion_mnist", the sample shipped with the package (6,000 images);
            a directory with one sub-directory per class, or some of `train/`, `val/` and `test/`
            with such;
            a .csv file with the columns `file`, `label` and, optionally, `split`;
            "tfds:NAME", a dataset of tensorflow-datasets with one label per image;
            an .npz file with some of x_train and y_train, x_val and y_val, x_test and y_test (or
            train_images and train_labels, ..., as MedMNIST), and class_names;
            arrays, (images, labels) or up to three such pairs, to train, validate and test. Images
            are (n, height, width[, channels]), uint8 or floats in 0..1, labels as in
            `Split.labels` or names;
            a `Dataset`, as from `from_files`.
        validation_split: Fraction of each class to hold out from the training images if the source
            has no validation images. Or the names of the images to hold out, as in `Split.names`
            and `keras_vitx.training.held_out(run)`.
        seed: Seed of the fractions.
        strict: Whether an image file that can't be read is an error. If not, a warning is logged;
            a file of a format that Pillow can't read is listed in `skipped`, another image replaces
            one that can't be decoded in training, and in evaluation it does not count.
        fraction: Fraction of the other training images of each class to use (ConViT, Table 2).

    Raises:
        ValueError: if the source has fewer than two classes, or labels that are none.
        OSError: if a file can't be read.
        ImportError: if tensorflow-datasets is required but not installed.
    """
    if is_fraction := isinstance(validation_split, Real):
        rule = "`validation_split` must be a number in [0, 1), or names of images."
        check(0 <= validation_split < 1, rule, validation_split)
    check_argument("fraction", fraction, Annotated[float, "(0, 1]"])
    dataset = _open(source, strict)
    train, strict = dataset.train, dataset.strict or strict
    if train is not None and dataset.validation is None and (validation_split or not is_fraction):
        train, validation = hold_out(train, validation_split, seed)
        dataset = replace(dataset, validation=validation, held_out=True)
    if train is not None:
        train = fraction_of(train, fraction, seed)
    return replace(dataset, train=train, strict=strict)


def _open(source, strict: bool) -> Dataset:
    if isinstance(source, Dataset):
        return source
    if isinstance(source, (tuple, list)):
        return load_arrays(tuple(source))
    if isinstance(source, (str, os.PathLike)):
        name, path = str(source), Path(source).expanduser()
        if name == "fashion_mnist":
            return load_npz(FASHION_MNIST, name)
        if name.startswith("tfds:"):
            return load_tfds(name.removeprefix("tfds:"))
        if path.suffix.lower() == ".npz":
            return load_npz(path, name)
        if path.suffix.lower() == ".csv":
            return load_csv(path)
        if path.is_dir():
            return load_directory(path, strict)
        if not path.exists() and len(name) < 200:
            source = f"{name}, and there is no such directory or file"
    raise ValueError(
        '`source` must be a directory of classes, a .csv or .npz file, "tfds:NAME", (images, '
        f'labels), "fashion_mnist", or `from_files(...)`. Received: {source!s:.200}.'
    )
