"""Whether a call takes and returns arrays of the shapes and types that its annotations say."""

import inspect
import itertools
import types
import typing
from collections.abc import Callable
from typing import Any

from jaxtyping import AbstractArray, jaxtyped


def call(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call whose arrays are those of the annotations."""
    signature = inspect.signature(function)
    arguments = signature.bind(*args, **kwargs).arguments
    result = function(*args, **kwargs)
    pairs = [(value, signature.parameters[name].annotation) for name, value in arguments.items()]
    with jaxtyped("context"):  # In which an axis of one name has one length.
        for value, annotation in [*pairs, (result, signature.return_annotation)]:
            assert fits(value, annotation), (value, annotation)
    return result


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value is one of an annotation, or of one without an array."""
    kind, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if kind in (types.UnionType, typing.Union):
        return any(isinstance(value, part) for part in parts if isinstance(part, type))
    if parts and isinstance(value, (tuple, list)):
        return all(map(fits, value, itertools.chain(parts, itertools.repeat(parts[0]))))
    is_array = isinstance(annotation, type) and issubclass(annotation, AbstractArray)
    return not is_array or isinstance(value, annotation)
