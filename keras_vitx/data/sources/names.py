"""The gate for names of classes, and names of splits."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Number
from typing import Any

from keras_vitx.checks import check

SPLITS = {"val": "validation", "valid": "validation"}
SPLITS |= {name: name for name in ("train", "validation", "test")}
"""Splits by their names, in lower case."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def split_of(name: str) -> str | None:
    """Return the split of a name in `SPLITS`, in any case; None if it is no split's."""
    return SPLITS.get(name.lower())


def name_of(label: object) -> str | None:
    """Return a name as text in one form: a Mac writes "é" as two characters.

    None if it is missing (None, NaN, `<NA>` or empty), or neither text nor a number.
    """
    label = label.decode() if isinstance(label, bytes) else label
    if not isinstance(label, (str, Number)):
        return None
    name = unicodedata.normalize("NFC", str(label)).strip()
    return None if name in ("", "nan", "<NA>", "NaT") else name


def names_of(class_names: Sequence[Any] | Mapping[Any, Any]) -> tuple[str, ...]:
    """Return names of classes, given as a sequence or, as Transformers' `id2label`, by index."""
    given = class_names
    if isinstance(given, Mapping):
        by_index = {str(index): name for index, name in given.items()}
        given = [by_index.get(str(index)) for index in range(len(by_index))]
    names = [] if isinstance(given, str) else list(map(name_of, given))
    rule = "`class_names` must be a list of different names, or of the form {0: 'cat', 1: 'dog'}."
    check(names and None not in names and len({*names}) == len(names), rule, class_names)
    return tuple(names)


def numbers_of(names: Iterable[str]) -> list[Decimal] | None:
    """Return the numbers that are the names ("0", "1.0", "-2"); None if one of them is none."""
    names = list(names)
    return [*map(Decimal, names)] if all(map(NUMBER.fullmatch, names)) else None


def are_numbers(class_names: Sequence[str]) -> bool:
    """Return whether the names are those of unnamed classes: "0", "1", ..."""
    return list(class_names) == [str(i) for i in range(len(class_names))]


def in_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names of classes, sorted; numbers by value, so that label 2 is "2"."""
    names = sorted(set(names))
    numbers = numbers_of(names)
    rule = "`labels` must have one spelling of each number."
    check(numbers is None or len({*numbers}) == len(names), rule, names)
    return names if numbers is None else sorted(names, key=Decimal)
