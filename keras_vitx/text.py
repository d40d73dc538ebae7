"""Words that several errors share."""

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
