"""What a handler can ask about the run it is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The attempt that is being made. Get it with :func:`current_run`."""

    job_id: int
    job_type: str
    queue: str
    attempt: int
    idempotency_key: str | None
    deadline: datetime | None
    """When the attempt will be stopped for its time-out; None without one. Aware, and of this
    machine's clock."""
    headers: Mapping[str, Any]
    scheduled_for: datetime | None
    """The due time of its schedule, aware and in UTC; None for a job that no schedule made."""
    _stop: Callable[[], bool] = field(repr=False)

    def should_stop(self) -> bool:
        """Whether the handler should end as soon as it can: its job was cancelled, its lease was
        lost, or its worker's time to drain is over. Cheap enough to ask in a loop."""
        return self._stop()


_current: ContextVar[RunContext | None] = ContextVar("django_jobs_run", default=None)


def current_run() -> RunContext | None:
    """The run that the calling handler is in; None outside a worker."""
    return _current.get()
