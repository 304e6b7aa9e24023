"""The methods of models that need a room on a higher floor, such as those that change rows. Models
may not import it, so it registers here what they call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class JobChanges(TypedDict, total=False):
    """What :meth:`Job.edit <django_jobs.models.Job.edit>` can change. What is left out stays.

    ``payload`` is a whole new payload, arguments by name. ``run_at`` is an aware datetime; one in
    the past means now. ``by`` and ``reason`` are stored with the job.
    """

    payload: Mapping[str, Any]
    queue: str
    priority: int
    run_at: datetime
    by: str
    reason: str


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
