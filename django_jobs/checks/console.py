"""The system check of the functions that the console calls: E021."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string

from ..conf import conf
from ..domain.errors import ErrorReport
from ..domain.payload import a_kind
from .settings import TAG, check_settings


@register(TAG)
def check_console(**kwargs: Any) -> list[CheckMessage]:
    """Check that the functions in ``LINKS`` and ``ADMIN_SCOPE`` can be called."""
    if any(message.is_serious() for message in check_settings()):
        return []
    return [*_of("LINKS", conf().links, "job"), *_of("ADMIN_SCOPE", conf().admin_scope, "user")]


def _of(key: str, path: Any, argument: str) -> Iterator[CheckMessage]:
    if not (isinstance(path, str) and path):
        return
    try:
        function = import_string(path)
    except Exception as error:  # of the module that is imported
        problem = f"cannot be imported: {ErrorReport.of(error).summary}"
    else:
        problem = _why_not(function, argument)
    if problem:
        yield Error(
            f'{path!r} in DJANGO_JOBS["{key}"] {problem}.',
            hint=f"Write the dotted path of a function of one argument, the {argument}.",
            id="django_jobs.E021",
        )


def _why_not(function: Any, argument: str) -> str:
    if not callable(function):
        return f"is {a_kind(function)}, which cannot be called"
    if inspect.iscoroutinefunction(function):
        return "is async; write a plain function"
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return f"does not take one argument, the {argument}"
    except ValueError:  # a function of C has no signature
        pass
    return ""
