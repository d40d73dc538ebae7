"""Phrases that several error messages share."""

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


def needs_extra(what: str, *extras: str) -> str:
    """Return the message of an error about a missing optional package.

    The command installs from a checkout, because the package is not on a package index.

    Args:
        what: What is missing, such as "Figures need matplotlib".
        extras: The extras of `pyproject.toml` that include the package; any of them will do.
    """
    names = " or ".join(f'"{extra}"' for extra in extras)
    return (
        f"{what}: install keras_vitx with the extra {names}, in its checkout: "
        f'pip install ".[{extras[0]}]".'
    )
