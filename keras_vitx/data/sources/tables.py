"""CSV sources: a table of image files and their labels."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vitx.data.sources.dataset import Dataset, ImageFiles, dataset_of, split_of
from keras_vitx.text import shortened

FILE = ("file", "filename", "file_name", "path", "filepath", "image", "image_path", "image_id")
LABEL = ("label", "labels", "class", "target", "category", "tags")
SPLIT = ("split", "subset", "partition", "set")
SEPARATORS = (";", "|")  # Between the labels of an image.


def load_table(path: Path) -> Dataset:
    """Load a .csv file with a header and one row per image file, which must exist.

    Columns, by name in any case:

    - `file` (or `path`, `image`, ...): path of the image, relative to the table.
    - `label` (or `labels`, `class`, ...): the class by name, or several, separated by ";" or "|",
      for multi-hot labels, where an empty label is no class. Numbers with a decimal point in every
      row are regression targets.
    - Without `label`, each other column is a class and holds numbers in 0..1.
    - `split` (or `subset`, ...): a name in `dataset.SPLITS`; "train" without such a column.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames or []
    file_column, label, split = (
        next((column for column in columns if column.strip().lower() in names), None)
        for names in (FILE, LABEL, SPLIT)
    )
    classes = [name for name in columns if name not in (file_column, split)]
    if file_column is None or not rows or not (label or classes):
        raise ValueError(
            f"`source` must have a column `file`, and a column `label` or one per class, in {path}."
            f" Received: the columns {', '.join(columns) or 'none'} and {len(rows)} rows."
        )
    files = [path.parent / row[file_column] for row in rows]
    if missing := [file for file in files if not file.is_file()]:
        raise OSError(f"{path} names {len(missing)} files that do not exist, such as {missing[0]}.")
    if label is not None:
        names, labels = _labels([(row[label] or "").strip() for row in rows])
    else:
        names = classes
        try:
            labels = np.array([[float(row[name]) for name in classes] for row in rows])
        except (TypeError, ValueError):
            labels = np.array(np.nan)
        if not ((labels >= 0) & (labels <= 1)).all():
            raise ValueError(
                "`source` must have a column `label`, or numbers in 0..1 in its other columns. "
                f"Received: {path} with the columns {shortened(classes, 5)}."
            )
    rows_of_split: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        name = split_of((row[split] or "train").strip()) if split else "train"
        if name is None:
            raise ValueError(
                f"`source` must have the splits train, val, test. Received: {row[split]!r} in "
                f"{path}."
            )
        rows_of_split.setdefault(name, []).append(i)
    splits = {
        name: (ImageFiles([files[i] for i in indices], path.parent), labels[indices])
        for name, indices in rows_of_split.items()
    }
    return dataset_of(str(path), splits, names)


def _labels(texts: Sequence[str]) -> tuple[list[str] | None, np.ndarray]:
    """Return the class names, None for numbers, and the labels."""
    if all("." in text for text in texts):
        try:
            return None, np.array([float(text) for text in texts])
        except ValueError:
            pass  # Names with a period.
    separator = next((mark for mark in SEPARATORS if any(mark in text for text in texts)), None)
    if separator is None:
        if "" in texts:
            raise ValueError(
                "`source` must have a label in every row of a table. Received: none in row "
                f"{texts.index('') + 2}."
            )
        names, labels = np.unique(texts, return_inverse=True)
        return names.tolist(), labels
    several = [[name.strip() for name in text.split(separator)] for text in texts]
    names = sorted({name for row in several for name in row if name})
    return names, np.array([[name in row for name in names] for row in several], "float32")
