"""Image files with labels: lists of both, and CSV files."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of
from keras_vitx.data.sources.names import in_order, name_of, split_of

COLUMNS = ["file", "label"], ["file", "label", "split"]


def from_files(
    paths: Sequence[str | os.PathLike], labels: Any, class_names: Sequence[str] | None = None
) -> Dataset:
    """Return a dataset of image files and their labels, whatever says which these are.

    ```python
    table = pandas.read_csv("labels.csv")
    source = kv.data.from_files("photos/" + table.id + ".jpg", table.breed)
    ```

    All images are training images; `dataclasses.replace(source, test=other.train)` adds those of
    another dataset as its test split.

    Args:
        paths: The n files.
        labels: Names of classes (n,), or labels in one of the forms of `Split.labels`.
        class_names: Label i means `class_names[i]`. None for the names in `labels`, sorted, or for
            "0", "1", ...

    Raises:
        ValueError: if the numbers of files and labels differ, or a label is out of range.
    """
    images, labels = ImageFiles(map(Path, paths)), np.asarray(labels)
    if labels.dtype.kind in "OSU":
        names = [name_of(label) for label in labels]
        class_names = in_order(names) if class_names is None else [*map(name_of, class_names)]
        labels = np.array([class_names.index(name) for name in names])
    return dataset_of("files", {"train": (images, labels)}, class_names)


def load_csv(path: Path) -> Dataset:
    """Load a CSV file in UTF-8 with the columns `file`, `label` and, optionally, `split`.

    Files are relative to it; labels are names of classes; splits are train, val or test.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        columns, *rows = csv.reader(file)
    rows = [row for row in rows if row]
    if columns not in COLUMNS or not rows or {len(row) for row in rows} != {len(columns)}:
        raise ValueError(
            "`source` must have the columns file,label or file,label,split, and a value of each in "
            f"every row, in {path}. Received: {','.join(columns)} and {len(rows)} rows. Read other "
            "tables by `keras_vitx.data.from_files(paths, labels)`."
        )
    names = in_order(name_of(row[1]) for row in rows)
    parts: dict[str | None, tuple[list, list]] = {}
    for file, label, *split in rows:
        files, labels = parts.setdefault(split_of(*split) if split else "train", ([], []))
        files.append(path.parent / file)
        labels.append(names.index(name_of(label)))
    if None in parts:
        raise ValueError(f"`source` must have train, val or test as `split`. Received: {path}.")
    splits = {split: (ImageFiles(files, path.parent), y) for split, (files, y) in parts.items()}
    return dataset_of(str(path), splits, names)
