"""Background jobs for Django on the PostgreSQL you already run.

The public names are resolved on first use: models cannot be imported while Django loads apps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import cancel, enqueue, enqueue_many, job
    from .api.job_type import JobType
    from .api.schedules import schedule
    from .domain.backoff import Backoff
    from .domain.concurrency import Concurrency
    from .exceptions import (
        Cancel,
        Discard,
        EnqueueError,
        JobsError,
        LeaseLost,
        NotMigrated,
        OperationRefused,
        PayloadError,
        QueueFull,
        Retry,
        Snooze,
        TimeLimitExceeded,
        UnknownJobType,
        UnknownQueue,
    )
    from .models import JobStatus, RunOutcome
    from .worker.context.run_context import RunContext, current_run

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Cancel",
    "Concurrency",
    "Discard",
    "EnqueueError",
    "JobStatus",
    "JobType",
    "JobsError",
    "LeaseLost",
    "NotMigrated",
    "OperationRefused",
    "PayloadError",
    "QueueFull",
    "Retry",
    "RunContext",
    "RunOutcome",
    "Snooze",
    "TimeLimitExceeded",
    "UnknownJobType",
    "UnknownQueue",
    "cancel",
    "current_run",
    "enqueue",
    "enqueue_many",
    "job",
    "schedule",
]

_HOMES = {
    "Backoff": "domain.backoff",
    "Concurrency": "domain.concurrency",
    "JobStatus": "models",
    "RunOutcome": "models",
    "RunContext": "worker.context.run_context",
    "current_run": "worker.context.run_context",
    "JobType": "api.job_type",
    **dict.fromkeys(("cancel", "enqueue", "enqueue_many", "job"), "api"),
    "schedule": "api.schedules",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES.get(name, 'exceptions')}", __name__), name)
    globals()[name] = value
    return value
