"""How a log line is written, also to a standard error that nobody reads."""

from __future__ import annotations

import json
import logging
import re
import select
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TextIO

from .context import job_of

LONGEST_VALUE = 300
LONGEST_TEXT = 3_000
"""Characters of a traceback, or of the message of another logger. Its line usually fits into the
4,096 bytes that a pipe that is not full accepts without blocking the worker."""

PLAIN = re.compile(r"[\w.,:;/@+*#()\[\]<>!?%&|~^$-]+")
"""Values without quotes. All others are quoted, so that a line can be parsed."""

EVENT = "django_jobs_event"
"""The attribute of a record that has the name of the event and its fields."""


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object on one line, in ASCII: ``time``, ``level`` and
    ``event`` with its fields as they are typed. A record without an event has ``logger`` and
    ``message`` instead. What a handler logs has the keys of its job."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
        }
        event, fields = getattr(record, EVENT, ("", {}))
        if event:
            entry["event"] = event
        else:
            entry |= {"logger": record.name, "message": _cut(record.getMessage(), LONGEST_TEXT)}
        entry |= {key: typed(value) for key, value in fields.items() if value not in (None, "")}
        job = job_of(record)
        if entry.get("job_id", job.get("job_id")) == job.get("job_id"):
            entry = {**entry, **{key: typed(value) for key, value in job.items()}, **entry}
        if record.exc_info:
            entry["exception"] = _cut(self.formatException(record.exc_info), LONGEST_TEXT)
        return json.dumps(entry)


def typed(value: Any) -> Any:
    """``value`` as JSON has it: a number, a boolean, a list or a text, which is cut."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float) and isfinite(value):
        return round(value, 6)
    if isinstance(value, list | tuple):
        return [typed(one) for one in value]
    return _cut(str(value), LONGEST_VALUE)


def line(event: str, fields: dict[str, Any]) -> str:
    """``event=… key=value …`` on one line, for any values. None and "" are left out."""
    pairs = (f"{key}={_value(value)}" for key, value in fields.items() if value not in (None, ""))
    return " ".join((f"event={_value(event)}", *pairs))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = _cut(text, LONGEST_VALUE)
    if PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{printable(quoted)}"'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that a value can neither look like another line
    of the log nor control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


logger = logging.getLogger("django_jobs")


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
            event, fields = "log_lines_left_out", {"lines": self._left_out}
            self._left_out = 0
            left_out = logging.LogRecord(
                record.name, logging.WARNING, "", 0, line(event, fields), None, None
            )
            setattr(left_out, EVENT, (event, fields))
            super().emit(left_out)
        super().emit(record)

    def _has_room(self) -> bool:
        try:
            poll = select.poll()
            poll.register(self.stream.fileno(), select.POLLOUT)
            events = poll.poll(0)
            # Without a reader, POLLERR is set as well. A line that cannot be written would stay in
            # the stream and make the process exit with an error.
            return bool(events) and not events[0][1] & select.POLLERR
        except (AttributeError, OSError, ValueError):  # no descriptor, or closed
            return True


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


def show_jobs(formatter: logging.Formatter | None = None) -> None:
    """Have the root logger write what handlers log from ``INFO`` on, and warnings of all, unless it
    has a handler. Django's own loggers have one."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = PatientHandler()
    handler.setFormatter(formatter)
    handler.addFilter(
        lambda record: (
            not record.name.startswith("django")
            and (record.levelno >= logging.WARNING or bool(job_of(record)))
        )
    )
    root.addHandler(handler)
    root.setLevel(logging.INFO)
