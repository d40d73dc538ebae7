"""Names of splits, classes and files."""

import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from keras_vitx.text import printable, shortened

SPLITS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
"""The names of each split in directories, files and columns, in lower case."""
WORD = re.compile(rf"(?<![a-z])({'|'.join(itertools.chain(*SPLITS.values()))})(?![a-z])")


def split_of(name: str) -> str | None:
    """Return the split that a directory or column of this name holds; None if it is no split's."""
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


def split_in(name: str) -> str | None:
    """Return the split that is the last one in a name such as "seg_train" or "val2017", or None."""
    words = WORD.findall(name.lower())
    return split_of(words[-1]) if words else None


def text_of(name: Any) -> str:
    """Return the name of a file or class as one printable line, the same for NFC and NFD."""
    return printable(unicodedata.normalize("NFC", str(name)))


def numbers_of(names: Iterable[str]) -> list[int] | None:
    """Return the numbers that are the names ("0" ... "11"); None if one of them is no number."""
    names = list(names)
    return [int(n) for n in names] if all(n.isascii() and n.isdigit() for n in names) else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names of classes, sorted; numbers by value, so that label 2 is "2"."""
    names = sorted(set(names))
    if numbers := numbers_of(names):
        names.sort(key=int)
        if len(set(numbers)) < len(names):
            raise ValueError(
                "Class names that are numbers must be different numbers. Received: "
                f"{shortened(names, 5)}."
            )
    return names
