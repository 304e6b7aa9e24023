"""The methods of models that need a room on a higher floor, such as those that change rows. Models
may not import it, so it registers here what they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_functions: dict[str, Callable[..., Any]] = {}


def implements(name: str) -> Callable[[F], F]:
    """Register the decorated function for a method, such as ``"Job.signal"``. It is called with
    the instance first."""

    def register(function: F) -> F:
        _functions[name] = function
        return function

    return register


def implemented() -> set[str]:
    """The names of the registered methods."""
    return set(_functions)


def call(name: str, /, *args: Any, **options: Any) -> Any:
    """Call the function of a method."""
    return _functions[name](*args, **options)
