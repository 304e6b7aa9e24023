"""Background jobs for Django on the PostgreSQL you already run.

The public names are resolved on first use: models cannot be imported while Django loads apps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import cancel, enqueue, enqueue_many, job
    from .api.closing import pause, resume
    from .api.hooks import HookEvent
    from .api.job_type import JobType
    from .api.occurrences import (
        change_occurrence,
        move_occurrence,
        restore_occurrence,
        run_now,
        skip_occurrence,
    )
    from .api.pressure import (
        aqueue_pressure,
        aresource_pressure,
        queue_pressure,
        resource_pressure,
    )
    from .api.schedules import schedule
    from .api.workflows.compositions import chain, group
    from .api.workflows.workflow import Workflow
    from .domain.backoff import Backoff
    from .domain.concurrency import Concurrency
    from .domain.pressure import Pressure, ResourcePressure
    from .domain.workflows import If
    from .exceptions import (
        Cancel,
        Cancelled,
        Discard,
        DuplicateJob,
        EnqueueError,
        HookError,
        JobsError,
        LeaseLost,
        NotMigrated,
        OperationRefused,
        PayloadError,
        QueueFull,
        ResultNotStored,
        Retry,
        SignalTimeout,
        Skip,
        Snooze,
        TimeLimitExceeded,
        UnknownJobType,
        UnknownQueue,
        UnknownResource,
        WorkflowError,
    )
    from .lifecycle.stored_files import Stored
    from .models import JobStatus, RunOutcome
    from .worker.context.run_context import RunContext, current_run

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Cancel",
    "Cancelled",
    "Concurrency",
    "Discard",
    "DuplicateJob",
    "EnqueueError",
    "HookError",
    "HookEvent",
    "If",
    "JobStatus",
    "JobType",
    "JobsError",
    "LeaseLost",
    "NotMigrated",
    "OperationRefused",
    "PayloadError",
    "Pressure",
    "QueueFull",
    "ResourcePressure",
    "ResultNotStored",
    "Retry",
    "RunContext",
    "RunOutcome",
    "SignalTimeout",
    "Skip",
    "Snooze",
    "Stored",
    "TimeLimitExceeded",
    "UnknownJobType",
    "UnknownQueue",
    "UnknownResource",
    "Workflow",
    "WorkflowError",
    "aqueue_pressure",
    "aresource_pressure",
    "cancel",
    "chain",
    "change_occurrence",
    "current_run",
    "enqueue",
    "enqueue_many",
    "group",
    "job",
    "move_occurrence",
    "pause",
    "queue_pressure",
    "resource_pressure",
    "restore_occurrence",
    "resume",
    "run_now",
    "schedule",
    "skip_occurrence",
]

_HOMES = {
    "Backoff": "domain.backoff",
    "Concurrency": "domain.concurrency",
    **dict.fromkeys(("Pressure", "ResourcePressure"), "domain.pressure"),
    "If": "domain.workflows",
    "JobStatus": "models",
    "RunOutcome": "models",
    "RunContext": "worker.context.run_context",
    "current_run": "worker.context.run_context",
    "HookEvent": "api.hooks",
    "JobType": "api.job_type",
    "Stored": "lifecycle.stored_files",
    **dict.fromkeys(("cancel", "enqueue", "enqueue_many", "job"), "api"),
    **dict.fromkeys(
        ("aqueue_pressure", "aresource_pressure", "queue_pressure", "resource_pressure"),
        "api.pressure",
    ),
    **dict.fromkeys(("pause", "resume"), "api.closing"),
    "schedule": "api.schedules",
    **dict.fromkeys(
        (
            *("change_occurrence", "move_occurrence", "restore_occurrence", "skip_occurrence"),
            "run_now",
        ),
        "api.occurrences",
    ),
    "Workflow": "api.workflows.workflow",
    **dict.fromkeys(("chain", "group"), "api.workflows.compositions"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_HOMES.get(name, 'exceptions')}", __name__), name)
    except RuntimeError as error:
        if "INSTALLED_APPS" not in str(error):
            raise
        raise RuntimeError('"django_jobs" is not in INSTALLED_APPS') from None
    globals()[name] = value
    return value
