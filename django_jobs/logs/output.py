"""Standard error as a worker writes to it."""

from __future__ import annotations

import logging
import select
from typing import TextIO

from .formats import EVENT, line

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
