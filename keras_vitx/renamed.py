"""Old names, which keep working for one version with a `DeprecationWarning`."""

import functools
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Let a function take arguments by old names, and warn; `names` has the new by the old."""

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
    """Return a `__getattr__` that finds names of a module by their old ones, and warns.

    What moved has its new name with the module, such as `optimizer.WarmupCosine`.
    """

    def getattr_of_module(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"`{name}` is now `{names[name]}`.", DeprecationWarning, stacklevel=2)
        return operator.attrgetter(names[name])(sys.modules[module])

    return getattr_of_module
