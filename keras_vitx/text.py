"""Phrases that several error messages share."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `known` as a hint for an error: the nearest names, else all of them."""
    known = sorted(known)
    lowered = {entry.lower(): entry for entry in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(lowered[entry]) for entry in close) + "?"
    return "Known: " + ", ".join(known) + "."


def needs_extra(what: str, *extras: str) -> str:
    """Return the message of an error about a missing optional package.

    The extra is named for a checkout, since the package index has no project of our name.

    Args:
        what: What is missing, such as "Figures need matplotlib".
        extras: The extras of `pyproject.toml`, any one of which brings it.
    """
    names = " or ".join(f'"{extra}"' for extra in extras)
    return (
        f"{what}: install keras_vitx with the extra {names}, in its checkout: "
        f'pip install ".[{extras[0]}]".'
    )
