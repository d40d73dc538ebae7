"""Names of splits and classes."""

import unicodedata
from collections.abc import Iterable
from typing import Any

SPLITS = {
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
"""The names of each split, in lower case."""


def split_of(name: str) -> str | None:
    """Return the split of a name in `SPLITS`, in any case; None if it is no split's."""
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


def name_of(label: Any) -> str:
    """Return the name of a class as text in one form: a Mac writes "é" as two characters.

    Raises:
        ValueError: if it is missing (None, NaN, `<NA>` or empty).
    """
    name = unicodedata.normalize("NFC", label.decode() if isinstance(label, bytes) else str(label))
    if label is None or name.strip() in ("", "nan", "<NA>"):
        raise ValueError(f"`labels` must be a name in every row. Received: {label!r}.")
    return name


def numbers_of(names: Iterable[str]) -> list[int] | None:
    """Return the numbers that are the names ("0" ... "11"); None if one of them is no number."""
    names = list(names)
    return [int(n) for n in names] if all(n.isascii() and n.isdigit() for n in names) else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names of classes, sorted; numbers by value, so that label 2 is "2"."""
    names = sorted(set(names))
    return sorted(names, key=int) if numbers_of(names) else names
