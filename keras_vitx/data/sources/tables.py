"""Image files with labels: lists of both, and CSV files."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.checks import check
from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of, read_labels
from keras_vitx.data.sources.names import split_of

COLUMNS = ["file", "label"], ["file", "label", "split"]


def from_files(
    paths: Sequence[str | os.PathLike],
    labels: Any,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    *,
    split: Sequence[str] | None = None,
) -> Dataset:
    """Return a dataset of image files and their labels, whatever says which these are.

    ```python
    table = pandas.read_csv("labels.csv")
    source = kv.data.from_files("photos/" + table.id + ".jpg", table.breed)
    ```

    Args:
        paths: The n files; or, as from Hugging Face's datasets, `{"bytes": ..., "path": ...}`.
        labels: Names of classes (n,), or labels in one of the forms of `Split.labels`.
        class_names: Label i means `class_names[i]`. None for the names in `labels`, sorted, or for
            "0", "1", ...
        split: "train", "val" or "test" for each file. None for training images only.

    Raises:
        ValueError: if the numbers of files and labels differ, or a label is missing or out of
            range.
    """
    return _dataset("files", ImageFiles(paths), labels, class_names, split)


def load_csv(path: Path) -> Dataset:
    """Load a CSV file in UTF-8 with the columns `file`, `label` and, optionally, `split`.

    Files are relative to it; labels are names of classes; splits are train, val or test.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a CSV file in UTF-8. Received: {error}.") from error
    complete = rows and {len(row) for row in rows} == {len(columns)}
    rule = f"{path} must have file,label or file,label,split in each row; else, use `from_files`."
    check(columns in COLUMNS and complete, rule, [columns, *rows[:2]])
    files, labels, *split = zip(*rows, strict=True)
    images = ImageFiles([path.parent / file for file in files], path.parent)
    return _dataset(str(path), images, labels, None, *split)


def _dataset(
    name: str, images: ImageFiles, labels: Any, class_names: Any, split: Any = None
) -> Dataset:
    """Return the dataset of a table, in which all splits have the same class names."""
    if split is None:
        return dataset_of(name, {"train": (images, labels)}, class_names)
    labels, keys = np.asarray(read_labels(images, labels)), [split_of(str(x)) for x in split]
    rule = "`split` must be train, val or test for each file."
    check(len(keys) == len(labels) and None not in keys, rule, {*split})
    rows = {key: np.flatnonzero(np.array(keys) == key) for key in dict.fromkeys(keys)}
    splits = {key: (images[found], labels[found]) for key, found in rows.items()}
    return dataset_of(name, splits, class_names)
