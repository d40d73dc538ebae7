"""Tables of image files and their labels: CSV files and DataFrames."""

import contextlib
import csv
import io
import logging
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.data.sources.dataset import HINT, Dataset, ImageFiles, dataset_of
from keras_vitx.data.sources.names import SPLITS, in_order, split_of, text_of
from keras_vitx.text import shortened

FILE = ("file", "filename", "file_name", "path", "filepath", "image", "image_path", "image_id")
"""In their order: "image_id" may stand beside another one."""
LABEL = ("label", "labels", "class", "target", "category", "tags")
# What numbers in the last three mean is not known, and is an error.
SPLIT = ("split", "subset", "partition", "set", "fold", "is_train", "is_training")
FLAGS = {f"is_{name}": key for key in ("validation", "test") for name in SPLITS[key]}
# "cat|dog", a list in a DataFrame, or "1,5", which is two labels or has a decimal comma.
SEVERAL = re.compile(r"\||^[\[({]\s*['\"\d\])}]|^-?\d+,\d+$")
TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
log = logging.getLogger(__name__)


def load_table(table: Any, separator: str | None = None) -> Dataset:
    """Load a table with a header and a row per image file, which must exist.

    It is the path of a file, or a DataFrame, whose files are relative to the current directory.
    Columns are found by their names in any case: of the file (`FILE`), its label (`LABEL`), or else
    a column of numbers in 0..1 per class, and its split (`SPLIT` or `FLAGS`), "train" without.

    Rows of the same file are one image, and must have the same label and split.
    """
    path = table if isinstance(table, Path) else Path("DataFrame")
    try:
        columns, rows = _rows(table, path)
    except csv.Error as error:
        raise ValueError(f"`source` must be a table. Received: {path}: {error}.") from error
    file_column, split = (
        next((column for name in names for column in columns if column.lower() == name), None)
        for names in (FILE, SPLIT)
    )
    label = [name for name in columns if name.lower() in LABEL]
    flags = {name: FLAGS[name.lower()] for name in columns if name.lower() in FLAGS}
    # An index without a name, as Pandas writes it, is no class.
    others = ("", file_column, split, *flags)
    classes = label or [name for name in columns if name not in others]
    if file_column is None or not rows or not classes or len(label) > 1:
        raise ValueError(
            f"`source` must have a column `file`, and one column `label` or one per class, in "
            f"{path}. Received: the columns {', '.join(columns) or 'none'} and {len(rows)} rows."
        )
    images: dict[str, tuple] = {}
    for row in rows:
        file = _existing(path.parent, row[file_column])
        values = [row[name] for name in classes], _split(row, split, flags)
        first = images.setdefault(os.path.realpath(file), (file, *values))
        if first[1:] != values:
            raise ValueError(
                "`source` must have one label and split per file; one row may have several labels, "
                f"as in 'cat;dog'. Received: {first[1:]} and {values} for {file} in {path}."
            )
    files, values, split_names = zip(*images.values(), strict=True)
    if missing := [file for file in files if not file.is_file()]:
        raise OSError(f"{path} names {len(missing)} files that do not exist, such as {missing[0]}.")
    if len(files) < len(rows):
        log.warning("%s has %d rows for %d files, which count once.", path, len(rows), len(files))
    if label:
        names, labels = _labels([text_of(value) for (value,) in values], separator)
    else:
        names, labels = list(map(text_of, classes)), np.array(np.nan)
        with contextlib.suppress(ValueError):
            labels = np.array(values, "float64")
        if not ((labels >= 0) & (labels <= 1)).all():
            raise ValueError(
                "`source` must have a column `label`, or numbers in 0..1 in its other columns. "
                f"Received: {path} with the columns {shortened(classes, 5)}."
            )
    splits = {}
    for name in sorted(set(split_names)):
        indices = [i for i, found in enumerate(split_names) if found == name]
        splits[name] = ImageFiles([files[i] for i in indices], path.parent), labels[indices]
    return dataset_of(str(path), splits, names)


def _rows(table: Any, path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of a table, without spaces around names and values."""
    try:
        if table is not path:
            text = table.to_csv(index=False)
        elif (content := path.read_bytes())[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(
            "`source` must be a table in UTF-8, or in UTF-16 with a byte-order mark. Received: "
            f'{path} in another encoding. Save it as "CSV UTF-8".'
        )
    text = re.sub("^sep=.*\n", "", text)  # Excel's first line.
    lines = list(io.StringIO(text, newline=""))  # `splitlines` would also split at U+2028.
    for delimiter in ";\t|,":
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        columns = [name.strip() for name in next(reader, [])]
        if len(columns) > 1 and not {name.lower() for name in columns}.isdisjoint(FILE):
            break
    rows = []
    for row in reader:
        values = [value.strip() for value in row]
        is_wrong = any(values[len(columns) :]) or not len(values) >= len(columns) == len({*columns})
        if values and is_wrong:
            raise ValueError(
                f"`source` must have {len(columns)} different columns with a value each in every "
                f"row. Received: {len(values)} values in line {reader.line_num} of {path}."
            )
        if any(values):
            rows.append(dict(zip(columns, values, strict=False)))
    return columns, rows


def _existing(directory: Path, name: str) -> Path:
    """Return the path of an image as written, or as another system or an archive writes it."""
    forms = (unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))
    paths = [directory / form for form in (name, *forms, name.replace("\\", "/"))]
    return next((path for path in paths if path.is_file()), paths[0])


def _split(row: Mapping[str, str], split: str | None, flags: Mapping[str, str]) -> str:
    """Return the split of a row by its column of splits, or by columns such as `is_valid`."""
    values = {flag: TRUTH.get(row[flag].lower()) for flag in flags}
    named = {flags[flag] for flag, value in values.items() if value} or {"train"}
    if split:
        name = split_of(row[split])
    else:
        name = named.pop() if len(named) == 1 and None not in values.values() else None
    if name is None:
        raise ValueError(
            "`source` must have train, val or test in its column of splits, or true or false in "
            f"is_valid and is_test. Received: {row[split] if split else row!r:.200}."
        )
    return name


def _parts(text: str, separator: str) -> set[str]:
    return {part.strip() for part in text.split(separator)}


def _labels(texts: Sequence[str], separator: str | None) -> tuple[list[str] | None, np.ndarray]:
    """Return the class names, None for numbers, and the labels."""
    with contextlib.suppress(ValueError):
        numbers = np.array([float(text) for text in texts])
        if any("." in text for text in texts):
            return None, numbers
    known = set(texts)
    unclear = [
        text
        for text in sorted(known)
        if SEVERAL.search(text) or any(_parts(text, mark) < known for mark in " ," if mark in text)
    ]
    if separator is None and unclear:
        raise ValueError(
            "`separator` must be given where labels may be several: what separates them, or ';' if "
            f"they are names; join lists by ';'. Received: None, and the label {unclear[0]!r}. "
            f"{HINT}"
        )
    several = [[name.strip() for name in text.split(separator or ";")] for text in texts]
    names = in_order(name for row in several for name in row if name)
    index = {name: i for i, name in enumerate(names)}
    if max(map(len, several)) == 1:
        if "" in texts:
            raise ValueError(
                "`source` must have a label in every row of a table. Received: none in row "
                f"{texts.index('') + 2}."
            )
        return names, np.array([index[text] for text in texts])
    labels = np.zeros((len(texts), len(names)), "float32")
    for row, found in zip(labels, several, strict=True):
        row[[index[name] for name in found if name]] = 1
    return names, labels
