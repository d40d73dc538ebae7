"""CSV sources: a table of image files and their labels."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vitx.data.sources.encoded import ImageFiles
from keras_vitx.data.sources.splits import Dataset, Split, checked_labels, split_of

FILE = ("file", "filename", "file_name", "path", "filepath", "image", "image_path", "image_id")
LABEL = ("label", "labels", "class", "target", "category", "tags")
SPLIT = ("split", "subset", "partition", "set")
SEVERAL = (";", "|")  # between the labels of one image


def load_table(path: Path) -> Dataset:
    """Load a .csv file with a header, one row per image file.

    Columns, by name in any case:

    - `file` (or `path`, `image`, ...): path of the image, relative to the table.
    - `label` (or `labels`, `class`, ...): the class of the image by name; several classes are
      separated by ";" or "|", and become multi-hot labels, as soon as one image has several. An
      empty label is then no class. Numbers with a decimal point in each row are regression
      targets.
    - Without it, each other column is a class, and holds 1 for the images that show it, else 0.
    - `split` (or `subset`, ...): `train`, `val` or `test`, or another name of `splits.SPLITS`;
      without it, all images are training images.

    Raises:
        ValueError: if a column is missing, a split is unknown, or the labels can't be read.
        OSError: if the table can't be read, or an image file does not exist.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames or []
    file_column, label, split = (_column(columns, names) for names in (FILE, LABEL, SPLIT))
    classes = [name for name in columns if name not in (file_column, split)]
    if file_column is None or not rows or not (label or classes):
        raise ValueError(
            f"source: expected a column `file`, and a column `label` or one per class, in {path}. "
            f"Received: the columns {', '.join(columns) or 'none'} and {len(rows)} rows."
        )
    files = [path.parent / row[file_column] for row in rows]
    if missing := [file for file in files if not file.is_file()]:
        raise OSError(f"{path} names {len(missing)} files that do not exist, such as {missing[0]}.")
    if label is not None:
        names, labels = _labels([(row[label] or "").strip() for row in rows])
    else:
        names, labels = tuple(classes), _numbers(rows, classes, path)
    if names is not None and len(names) < 2:
        raise ValueError(f"source: expected at least two classes in {path}, found {len(names)}.")
    labels = checked_labels(labels, len(rows), names and len(names), f"Labels of {path}")

    splits = [split_of((row[split] or "train").strip()) if split else "train" for row in rows]
    if None in splits:
        value = rows[splits.index(None)][split]
        raise ValueError(
            f"source: {path} has the unknown split {value!r}. Expected train, val, test."
        )
    if "train" not in splits:
        raise ValueError(f"source: {path} has no training images, only {', '.join(set(splits))}.")
    every = Split(ImageFiles(files, path.parent), labels)
    loaded = {
        name: every.take(np.flatnonzero([entry == name for entry in splits]))
        for name in ("train", "validation", "test")
        if name in splits
    }
    return Dataset(str(path), names, **loaded)


def _column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    return next((column for column in columns if column.strip().lower() in names), None)


def _labels(texts: list[str]) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Return the class names and the labels; no names for numbers."""
    if all("." in text for text in texts):
        try:
            return None, np.array([float(text) for text in texts])
        except ValueError:
            pass  # names with a point
    separator = next((mark for mark in SEVERAL if any(mark in text for text in texts)), None)
    several = [
        [name.strip() for name in (text.split(separator) if separator else [text])]
        for text in texts
    ]
    if separator is None and "" in texts:
        raise ValueError(f"source: row {texts.index('') + 2} of the table has no label.")
    names = sorted({name for row in several for name in row if name})
    index = {name: i for i, name in enumerate(names)}
    if separator is None:
        return tuple(names), np.array([index[row[0]] for row in several])
    labels = np.zeros((len(texts), len(names)), "float32")
    for i, row in enumerate(several):
        labels[i, [index[name] for name in row if name]] = 1
    return tuple(names), labels


def _numbers(rows: list[dict[str, str]], classes: Sequence[str], path: Path) -> np.ndarray:
    try:
        labels = np.array([[float(row[name]) for name in classes] for row in rows])
    except (TypeError, ValueError):
        labels = np.full((1, 1), np.nan)
    if not ((labels >= 0) & (labels <= 1)).all():
        raise ValueError(
            f"source: expected a column `label`, or numbers in 0..1 in the columns "
            f"{', '.join(classes[:5])} of {path}."
        )
    return labels
