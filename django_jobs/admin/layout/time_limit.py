"""A time limit for the statements of a page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from ...conf import conf
from ...models.database import fetch, jobs_connection

QUERY_CANCELED = "57014"
# For this transaction only, so that a pooler may give the session to others after it.
SET_LIMIT = """
SELECT before.setting, set_config('statement_timeout', %(limit)s, true)
FROM (SELECT current_setting('statement_timeout') AS setting) AS before
"""

_is_limited = ContextVar("_is_limited", default=False)


@contextmanager
def time_limit() -> Iterator[None]:
    """A transaction on the jobs' database whose statements end after ``ADMIN_STATEMENT_TIMEOUT``.
    Inside another time limit it is nothing. Inside another transaction it is a savepoint, and the
    limit of before returns at its end."""
    seconds = conf().admin_statement_timeout
    if seconds is None or _is_limited.get():
        yield
        return
    token = _is_limited.set(True)
    try:
        with _limited_transaction(seconds):
            yield
    finally:
        _is_limited.reset(token)


@contextmanager
def _limited_transaction(seconds: float) -> Iterator[None]:
    connection = jobs_connection()
    is_nested = connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        ((before, _now),) = fetch(SET_LIMIT, {"limit": f"{max(round(seconds * 1000), 1)}ms"})
        yield
        if is_nested and not connection.needs_rollback:
            fetch(SET_LIMIT, {"limit": before})


def is_timed_out(error: BaseException) -> bool:
    """Whether PostgreSQL ended the statement because of its time limit."""
    return getattr(error.__cause__, "sqlstate", None) == QUERY_CANCELED


def limited(
    page: Any,
    view: Callable[..., HttpResponse],
    reads: Callable[[HttpRequest], bool],
    timed_out: Callable[[Any, HttpRequest], HttpResponse],
) -> Callable[..., HttpResponse]:
    """``view`` with the time limit for those requests that only ``reads``, or that change something
    in one transaction. If the limit is reached the answer is that of ``timed_out``."""

    @functools.wraps(view)
    def limited_view(request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        try:
            if not reads(request):
                return view(request, *args, **options)
            with time_limit():
                response = view(request, *args, **options)
                if isinstance(response, TemplateResponse):
                    response.render()  # reads too
                return response
        except OperationalError as error:
            if not is_timed_out(error):
                raise
        return timed_out(page, request)

    return limited_view
