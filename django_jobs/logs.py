"""Logs the signals of the worker: one line per event, with stable keys.

What no signal carries is logged where it happens, in the same form: a hint that could not be sent,
an ``on_commit`` that raised, a job that could not be settled or given back.
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
"""The id of the receivers that log: there are at most one of each signal."""

LONGEST_VALUE = 300
PLAIN = re.compile(r"[\w.,:;/@+*#()\[\]<>!?%&|~^$-]+")
"""What stands in a line without quotes; all else is quoted, so that a line can be taken apart."""

TROUBLE = frozenset({RunState.FAILED, RunState.TIMED_OUT, RunState.LOST})
KEYWORDS = ("job_id", "queue", "attempt", "status", "outcome", "seconds", "error")


class PatientHandler(logging.StreamHandler[TextIO]):
    """Leaves lines out while its pipe is full or has no reader, and tells how many when it has: to
    wait for a reader would stop the heartbeat, and with it the worker."""

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
        """Whether a line can be written without waiting."""
        try:
            poll = select.poll()
            poll.register(self.stream.fileno(), select.POLLOUT)
            events = poll.poll(0)
            # Without a reader there is an error as well. What cannot be written would stay in the
            # stream, and make the exit of the process a failure.
            return bool(events) and not events[0][1] & select.POLLERR
        except (AttributeError, OSError, ValueError):  # no descriptor, or closed
            return True


def connect(level: int | None = None) -> None:
    """Log what the worker does. ``level`` defaults to that of the logger ``django_jobs``.

    Successes are listened to at DEBUG only: a receiver of ``job_finished`` costs time with every
    job. Connecting twice changes nothing.
    """
    attempt_failed.connect(log_attempt, dispatch_uid=CONNECTED)
    job_dead.connect(log_dead, dispatch_uid=CONNECTED)
    worker_event.connect(log_worker_event, dispatch_uid=CONNECTED)
    if (logger.getEffectiveLevel() if level is None else level) <= logging.DEBUG:
        job_finished.connect(log_success, dispatch_uid=CONNECTED)


def to_stderr(level: int, formatter: logging.Formatter | None = None) -> bool:
    """Give the logger ``django_jobs`` a stream, unless the project's LOGGING has a handler for it;
    whether it was given one."""
    if logger.hasHandlers():
        return False
    handler = PatientHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(formatter or plain)
    logger.addHandler(handler)
    logger.setLevel(level)
    return True


def disconnect() -> None:
    """Log no more."""
    for signal in (attempt_failed, job_dead, worker_event, job_finished):
        signal.disconnect(dispatch_uid=CONNECTED)


def log_success(sender: str, **fields: Any) -> None:
    """``job_finished`` of a success. The other outcomes come as ``attempt_failed``."""
    if fields.get("outcome") == RunState.SUCCEEDED:
        _log_job(logging.DEBUG, "job_succeeded", sender, fields)


def log_attempt(sender: str, **fields: Any) -> None:
    """``attempt_failed``: ``event=job_failed``, ``job_snoozed`` and so on by the outcome."""
    outcome = fields.get("outcome")
    level = level_of(outcome)
    more = ("reason",) if fields.get("status") == JobState.CANCELLED else ()
    _log_job(level, f"job_{outcome}", sender, fields, *more)


def level_of(outcome: Any) -> int:
    """How loud the end of an attempt is."""
    return logging.WARNING if outcome in TROUBLE else logging.INFO


def log_dead(sender: str, **fields: Any) -> None:
    """``job_dead``: nobody will try this job again unless a person does."""
    _log_job(logging.ERROR, "job_dead", sender, fields, "reason")


def log_worker_event(sender: str, *, level: int, fields: dict[str, Any], **others: Any) -> None:
    """``worker_event``, with the fields as they were given."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", line(sender, fields))


def line(event: str, fields: dict[str, Any]) -> str:
    """``event=… key=value …`` on one line, whatever the values hold. None and "" are left out."""
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
    """A line break or another control character in a value must not look like a line of the log,
    nor steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
