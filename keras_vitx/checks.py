"""Checks of arguments and fields, whose errors say what is expected, and what was received."""

import dataclasses
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union

from keras_vitx.text import nearest

Range = tuple[float, float]
NUMBERS = {int: "an integer", float: "a number", Range: "a minimum and a maximum"}

# Numbers and the interval they must be in.
PositiveInt = Annotated[int, "[1, inf)"]
NonNegativeInt = Annotated[int, "[0, inf)"]
PositiveFloat = Annotated[float, "(0, inf)"]
NonNegativeFloat = Annotated[float, "[0, inf)"]
Probability = Annotated[float, "[0, 1]"]
Remat = bool | Literal["products"]
CHOICES = {bool: (True, False), Remat: (False, "products", True)}


def check(holds: object, rule: str, received: object) -> None:
    """Raise a ValueError of a rule, "`x` must be ...", and what was received, if it is broken."""
    if not holds:
        raise ValueError(f"{rule} Received: {received!r:.200}.")


def from_fields(cls: type, values: Mapping[str, Any]) -> Any:
    """Return a dataclass from its fields; a ValueError suggests the nearest to an unknown one."""
    known = {field.name for field in dataclasses.fields(cls)}
    for name in values:
        if name not in known:
            raise ValueError(
                f"Settings must be those of `{cls.__name__}`. Received: {name!r}. "
                f"{nearest(name, known)}"
            )
    return cls(**values)


def check_fields(record: object) -> None:
    """Raise a ValueError if a field of a dataclass does not match its annotation."""
    for name, hint in typing.get_type_hints(type(record), include_extras=True).items():
        check_argument(name, getattr(record, name), hint)


def check_argument(name: str, value: object, hint: object) -> Any:
    """Return a value; raise a ValueError if it does not match an annotation.

    That is a number as above, a `Literal`, bool or a class, each also with `| None`.
    """
    if optional := is_optional(hint):
        if value is None:
            return value
        hint = Union[*(kind for kind in typing.get_args(hint) if kind is not type(None))]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        kind, interval = arguments
        expected, valid = f"{NUMBERS[kind]} in {interval}", _is_within(value, kind, interval)
    elif arguments or hint is bool:
        choices = CHOICES.get(hint, arguments)
        expected, valid = f"one of {', '.join(map(repr, choices))}", value in choices
    else:
        expected, valid = f"of type `{hint.__name__}`", isinstance(value, hint)
    if not valid:
        none = ", or None" if optional else ""
        raise ValueError(f"`{name}` must be {expected}{none}. Received: {value!r}.")
    return value


def is_optional(hint: object) -> bool:
    """Return whether an annotation allows None."""
    return type(None) in typing.get_args(hint)


def _is_within(value: object, kind: type, interval: str) -> bool:
    if kind == Range:
        is_pair = isinstance(value, tuple) and len(value) == 2
        within = is_pair and all(_is_within(x, float, interval) for x in value)
        return within and value[0] <= value[1]
    if not isinstance(value, Integral if kind is int else Real) or isinstance(value, bool):
        return False
    low, high = map(float, interval[1:-1].split(","))
    above_low = low <= value if interval[0] == "[" else low < value
    return above_low and (value <= high if interval[-1] == "]" else value < high)


def check_counts(minimum: int = 1, **counts: Any) -> None:
    """Raise a ValueError unless each of `counts` is an integer of at least `minimum`."""
    for name, count in counts.items():
        check_argument(name, count, Annotated[int, f"[{minimum}, inf)"])
