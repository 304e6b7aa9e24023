"""Counts the queries of each handler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..context.attempt import Attempt
from ..context.run_context import running_attempt


def count_query(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
) -> Any:
    """Count a statement for the run in whose context it is sent. One of ``execute_wrappers``."""
    attempt = running_attempt()
    if attempt is None or (meter := attempt.meter) is None:
        return execute(sql, params, many, context)
    began = time.perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        meter.add_query(time.perf_counter() - began)


@contextmanager
def not_counted(attempt: Attempt) -> Iterator[None]:
    """Send statements of this package's own, before the handler begins."""
    meter, attempt.meter = attempt.meter, None
    try:
        yield
    finally:
        attempt.meter = meter
