"""Describes the error of a handler, without the frames of what called it."""

from __future__ import annotations

import os

from ..domain.errors import ErrorReport

WORKER = os.path.dirname(__file__)

ROOMS = "execution", "handlers", "process", "timeouts"

callers = [os.path.join(WORKER, room, "") for room in ROOMS]
"""The directories with the code between a worker's thread and a handler. Packages that bring
handlers of their own add theirs."""


def report_of(error: BaseException) -> ErrorReport:
    """The report of an error that a handler raised. Its traceback begins with the handler."""
    return ErrorReport.of(error, callers)
