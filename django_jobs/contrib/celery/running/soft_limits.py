"""Raises ``SoftTimeLimitExceeded`` in a task."""

from __future__ import annotations

import time
from functools import wraps
from typing import Any, cast

from celery.exceptions import SoftTimeLimitExceeded

from ....domain.durations import NEVER
from ....worker.timeouts.limits import TimeLimit
from ....worker.timeouts.threads import ThreadTimeouts

_timeouts = ThreadTimeouts()


class SoftLimit:
    """A time after which the exception is raised once. Unlike a :class:`TimeLimit` it does not
    decide how the attempt ends: the task may catch it."""

    def __init__(self, seconds: float) -> None:
        self.ended: bool | None = None
        self._deadline = time.monotonic() + seconds

    def due(self) -> float:
        """When the exception is to be raised; never, once it was."""
        return NEVER if self.ended else self._deadline

    def expire(self, now: float) -> type[BaseException]:
        """The exception to raise now."""
        self.ended = True
        return cast(type[BaseException], SoftTimeLimitExceeded)


def limit(task: Any) -> None:
    """Let the body of ``task`` end with its soft time limit, if its request has one. Only the body:
    the exception must not arrive in Celery's code around it."""
    body = task.run
    if getattr(body, "has_soft_limit", False):
        return

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        _, seconds = task.request.timelimit or (None, None)
        if not seconds or task.request.called_directly or task.request.is_eager:
            return body(*args, **kwargs)
        soft = cast(TimeLimit, SoftLimit(seconds))
        try:
            _timeouts.arm(soft)
            return body(*args, **kwargs)
        finally:
            _timeouts.disarm(soft)

    run.has_soft_limit = True  # type: ignore[attr-defined]
    task.run = run
