"""Checks of the settings of a recipe."""

from numbers import Real
from typing import Any, NamedTuple


class Range(NamedTuple):
    """The numbers that a setting may be.

    Args:
        least: Least number.
        below: The numbers are below this one; None is no bound.
        whole: Whether they are integers.
        above: Whether `least` itself is excluded.
        optional: Whether None is allowed.
    """

    least: float = 0
    below: float | None = None
    whole: bool = False
    above: bool = False
    optional: bool = False

    def __contains__(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if isinstance(value, bool) or not isinstance(value, int if self.whole else Real):
            return False
        return (value > self.least if self.above else value >= self.least) and (
            value < (float("inf") if self.below is None else self.below)
        )

    def __str__(self) -> str:
        words = "an integer " if self.whole else "a number "
        words += f"above {self.least}" if self.above else f"of at least {self.least}"
        if self.below is not None:
            words += f" and below {self.below}"
        return f"{words}, or None" if self.optional else words


class Choice(tuple):
    """The values that a setting may be."""

    def __str__(self) -> str:
        return "one of " + ", ".join(map(repr, self))


YES_OR_NO = Choice((True, False))


def check(settings: Any, **allowed: Range | Choice) -> None:
    """Check attributes of `settings`.

    Raises:
        ValueError: if one is not allowed; the message names it, its value and what is expected.
    """
    for name, values in allowed.items():
        value = getattr(settings, name)
        if value not in values:
            raise ValueError(f"`{name}` must be {values}. Received: {value!r}.")
