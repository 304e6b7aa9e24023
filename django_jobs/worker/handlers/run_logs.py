"""Keeps what handlers log with their runs, if the setting asks for that."""

from __future__ import annotations

import json
import logging
from traceback import format_exception
from typing import Any

from ...conf import conf
from ...domain.errors import text_of
from ...domain.run_log import RunLog, secrets_in
from ...lifecycle.job_columns import ClaimedJob
from ..context.run_context import running_attempt


class RunLogHandler(logging.Handler):
    """Gives each record to the run in whose context it was logged. Never raises."""

    def emit(self, record: logging.LogRecord) -> None:
        attempt = running_attempt()
        if attempt is None or not attempt.is_live:
            return
        try:
            if attempt.log is None:
                attempt.log = _log_of(attempt.job)
            message = _message_of(record)
            attempt.log.add(record.created, record.levelname, record.name, message)
        except Exception:
            self.handleError(record)


def keep_logs() -> None:
    """Keep the logs of the handlers of this process. May be called twice."""
    options = conf().run_logs
    root = logging.getLogger()
    if options is None or any(isinstance(one, RunLogHandler) for one in root.handlers):
        return
    root.addHandler(RunLogHandler(options["level"]))


def _log_of(job: ClaimedJob) -> RunLog:
    options = conf().run_logs or {}
    words = [word.lower() for word in conf().redact_keys]
    try:
        payload: Any = json.loads(job.payload)
    except (ValueError, RecursionError):
        payload = None
    return RunLog(
        lines=options["lines"],
        size=options["bytes"],
        words=words,
        secrets=secrets_in(payload, words),
    )


def _message_of(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception as error:  # such as for arguments that do not fit
        message = f"{record.msg!r} could not be formatted: {text_of(error)}"
    if record.exc_info and record.exc_info[0] is not None:
        message += "\n" + "".join(format_exception(*record.exc_info))
    if record.stack_info:
        message += f"\n{record.stack_info}"
    return message
