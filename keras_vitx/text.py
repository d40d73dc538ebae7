"""Phrases that error messages share."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: the names of `known` nearest to `name`, or all."""
    known = sorted(known)
    lowered = {entry.lower(): entry for entry in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(lowered[entry]) for entry in close) + "?"
    return "Known: " + ", ".join(known) + "."


def shorten(names: Iterable[str], count: int = 3) -> str:
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
