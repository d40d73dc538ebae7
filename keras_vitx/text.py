"""Text for people: phrases that error messages share, and names from files."""

import difflib
import re
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: the names of `known` nearest to `name`, or all."""
    known = sorted(known)
    lowered = {entry.lower(): entry for entry in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(lowered[entry]) for entry in close) + "?"
    return "Known: " + ", ".join(known) + "."


def shortened(names: Iterable[str], count: int = 3) -> str:
    """Return the first names for an error message, with "..." only if there are more."""
    names = list(names)
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def needs_extra(what: str, *extras: str) -> str:
    """Return an error message about a missing package, which any of the `extras` installs.

    The command is for a checkout, because the package is not on a package index.
    """
    names = " or ".join(f'"{extra}"' for extra in extras)
    return (
        f"{what}: install keras_vitx with the extra {names}, in its checkout: "
        f'pip install ".[{extras[0]}]".'
    )


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with its control characters, but for those in `keep`, written as `\x1b`.

    In names of files and classes, they could move a terminal's cursor or turn the text around;
    bytes of a name that are not UTF-8 could not be written at all.
    """
    return re.sub(
        "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]",
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(),
        text,
    )


def csv_cell(value: object) -> object:
    """Return a value for a CSV file, with an apostrophe before what a spreadsheet would compute."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value[:1] in set("=+-@\t\r\n") else printable(value)
