"""Old names, which keep working for one version with a `DeprecationWarning`."""

import functools
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Return a decorator of a function that still takes arguments by their old names, and warns.

    Args:
        **names: The new name of each argument, by the old one.
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **arguments):
            for old in names.keys() & arguments.keys():
                warnings.warn(f"`{old}` is now `{names[old]}`.", DeprecationWarning, stacklevel=2)
                arguments[names[old]] = arguments.pop(old)
            return function(*args, **arguments)

        return call

    return decorate


def renamed_names(module: str, **names: str) -> Callable[[str], Any]:
    """Return a `__getattr__` of a module that still has names by their old ones, and warns.

    Args:
        module: `__name__` of the module.
        **names: The new name of each, by the old one; of what moved, with its module, as in
            `optimizer.WarmupCosine`.
    """

    def getattr_of_module(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"`{name}` is now `{names[name]}`.", DeprecationWarning, stacklevel=2)
        return operator.attrgetter(names[name])(sys.modules[module])

    return getattr_of_module
