"""Logs the signals of the worker: one line per event, with stable keys.

Events without a signal are logged in the same form where they happen: a notification that could not
be sent, an ``on_commit`` hook that raised, a job that could not be settled or given back.
"""

from __future__ import annotations

import logging
import re
import select
from typing import Any, TextIO

from .domain.states import JobState, RunState
from .signals import attempt_failed, job_dead, job_finished, worker_event

logger = logging.getLogger("django_jobs")

CONNECTED = "django_jobs.logs"
"""The ``dispatch_uid`` of the receivers that log, so that each signal has at most one."""

LONGEST_VALUE = 300
PLAIN = re.compile(r"[\w.,:;/@+*#()\[\]<>!?%&|~^$-]+")
"""Values without quotes. All others are quoted, so that a line can be parsed."""

TROUBLE = frozenset({RunState.FAILED, RunState.TIMED_OUT, RunState.LOST})
KEYWORDS = ("job_id", "queue", "attempt", "status", "outcome", "seconds", "error_code", "error")


class PatientHandler(logging.StreamHandler[TextIO]):
    """Drops lines while its pipe is full or has no reader, and logs their number afterwards.
    Waiting for a reader would stop the heartbeat, and with it the worker."""

    def __init__(self) -> None:
        super().__init__()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_room():
            self._left_out += 1
            return
        if self._left_out:
            text, self._left_out = f"event=log_lines_left_out lines={self._left_out}", 0
            left_out = logging.LogRecord(record.name, logging.WARNING, "", 0, text, None, None)
            super().emit(left_out)
        super().emit(record)

    def _has_room(self) -> bool:
        """Whether a line can be written without blocking."""
        try:
            poll = select.poll()
            poll.register(self.stream.fileno(), select.POLLOUT)
            events = poll.poll(0)
            # Without a reader, POLLERR is set as well. A line that cannot be written would stay in
            # the stream and make the process exit with an error.
            return bool(events) and not events[0][1] & select.POLLERR
        except (AttributeError, OSError, ValueError):  # no descriptor, or closed
            return True


def connect(level: int | None = None) -> None:
    """Log the events of the worker. ``level`` defaults to that of the logger ``django_jobs``.

    ``job_finished`` gets a receiver only at DEBUG, because it costs time for every job. Connecting
    twice changes nothing.
    """
    attempt_failed.connect(log_attempt, dispatch_uid=CONNECTED)
    job_dead.connect(log_dead, dispatch_uid=CONNECTED)
    worker_event.connect(log_worker_event, dispatch_uid=CONNECTED)
    if (logger.getEffectiveLevel() if level is None else level) <= logging.DEBUG:
        job_finished.connect(log_success, dispatch_uid=CONNECTED)


def to_stderr(level: int, formatter: logging.Formatter | None = None) -> bool:
    """Add a handler for stderr to the logger ``django_jobs``, unless the project's LOGGING has a
    handler for it. Returns whether it was added."""
    if logger.hasHandlers():
        return False
    handler = PatientHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(formatter or plain)
    logger.addHandler(handler)
    logger.setLevel(level)
    return True


def disconnect() -> None:
    """Stop logging events."""
    for signal in (attempt_failed, job_dead, worker_event, job_finished):
        signal.disconnect(dispatch_uid=CONNECTED)


def log_success(sender: str, **fields: Any) -> None:
    """Log ``job_finished`` of a success. :func:`log_attempt` logs the other outcomes."""
    if fields.get("outcome") == RunState.SUCCEEDED:
        _log_job(logging.DEBUG, "job_succeeded", sender, fields)


def log_attempt(sender: str, **fields: Any) -> None:
    """Log ``attempt_failed`` as ``event=job_failed``, ``event=job_snoozed`` and so on."""
    outcome = fields.get("outcome")
    level = level_of(outcome)
    more = ("reason",) if fields.get("status") == JobState.CANCELLED else ()
    _log_job(level, f"job_{outcome}", sender, fields, *more)


def level_of(outcome: Any) -> int:
    """The log level of an outcome."""
    return logging.WARNING if outcome in TROUBLE else logging.INFO


def log_dead(sender: str, **fields: Any) -> None:
    _log_job(logging.ERROR, "job_dead", sender, fields, "reason")


def log_worker_event(sender: str, *, level: int, fields: dict[str, Any], **others: Any) -> None:
    """Log ``worker_event`` with its fields."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", line(sender, fields))


def line(event: str, fields: dict[str, Any]) -> str:
    """``event=… key=value …`` on one line, for any values. None and "" are left out."""
    pairs = (f"{key}={_value(value)}" for key, value in fields.items() if value not in (None, ""))
    return " ".join((f"event={_value(event)}", *pairs))


def _log_job(level: int, event: str, sender: str, fields: dict[str, Any], *more: str) -> None:
    if logger.isEnabledFor(level):
        values = {key: fields.get(key) for key in (*KEYWORDS, *more)}
        job_id = values.pop("job_id")
        logger.log(level, "%s", line(event, {"job_id": job_id, "job_type": sender, **values}))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 1] + "…"
    if PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{printable(quoted)}"'


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that a value can neither look like another line
    of the log nor control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
