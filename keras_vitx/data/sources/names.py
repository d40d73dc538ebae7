"""Names of splits and classes."""

from collections.abc import Iterable

SPLITS = {
    "train": ("train",),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
"""The names of each split, in lower case."""


def split_of(name: str) -> str | None:
    """Return the split of a name in `SPLITS`, in any case; None if it is no split's."""
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


def numbers_of(names: Iterable[str]) -> list[int] | None:
    """Return the numbers that are the names ("0" ... "11"); None if one of them is no number."""
    names = list(names)
    return [int(n) for n in names] if all(n.isascii() and n.isdigit() for n in names) else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names of classes, sorted; numbers by value, so that label 2 is "2"."""
    names = sorted(set(names))
    return sorted(names, key=int) if numbers_of(names) else names
