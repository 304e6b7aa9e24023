"""Background jobs for Django on the PostgreSQL you already run.

The public names are resolved on first use: models cannot be imported while Django loads apps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import cancel as cancel
    from .api import enqueue as enqueue
    from .api import enqueue_many as enqueue_many
    from .api import job as job
    from .api.closing import pause as pause
    from .api.closing import resume as resume
    from .api.hooks import HookEvent as HookEvent
    from .api.job_type import JobType as JobType
    from .api.occurrences import change_occurrence as change_occurrence
    from .api.occurrences import move_occurrence as move_occurrence
    from .api.occurrences import restore_occurrence as restore_occurrence
    from .api.occurrences import run_now as run_now
    from .api.occurrences import skip_occurrence as skip_occurrence
    from .api.pressure import aqueue_pressure as aqueue_pressure
    from .api.pressure import aresource_pressure as aresource_pressure
    from .api.pressure import queue_pressure as queue_pressure
    from .api.pressure import resource_pressure as resource_pressure
    from .api.schedules import schedule as schedule
    from .api.workflows.compositions import chain as chain
    from .api.workflows.compositions import group as group
    from .api.workflows.workflow import Workflow as Workflow
    from .domain.backoff import Backoff as Backoff
    from .domain.concurrency import Concurrency as Concurrency
    from .domain.pressure import Pressure as Pressure
    from .domain.pressure import ResourcePressure as ResourcePressure
    from .domain.workflows import If as If
    from .exceptions import Cancel as Cancel
    from .exceptions import Cancelled as Cancelled
    from .exceptions import Discard as Discard
    from .exceptions import DuplicateJob as DuplicateJob
    from .exceptions import EnqueueError as EnqueueError
    from .exceptions import HookError as HookError
    from .exceptions import JobsError as JobsError
    from .exceptions import LeaseLost as LeaseLost
    from .exceptions import NotMigrated as NotMigrated
    from .exceptions import OperationRefused as OperationRefused
    from .exceptions import PayloadError as PayloadError
    from .exceptions import QueueFull as QueueFull
    from .exceptions import ResultNotStored as ResultNotStored
    from .exceptions import Retry as Retry
    from .exceptions import SignalTimeout as SignalTimeout
    from .exceptions import Skip as Skip
    from .exceptions import Snooze as Snooze
    from .exceptions import TimeLimitExceeded as TimeLimitExceeded
    from .exceptions import UnknownJobType as UnknownJobType
    from .exceptions import UnknownQueue as UnknownQueue
    from .exceptions import UnknownResource as UnknownResource
    from .exceptions import WorkflowError as WorkflowError
    from .lifecycle.stored_files import Stored as Stored
    from .models import JobStatus as JobStatus
    from .models import RunOutcome as RunOutcome
    from .worker.context.run_context import RunContext as RunContext
    from .worker.context.run_context import current_run as current_run

__version__ = "0.1.0"

_HOMES = {
    name: home
    for home, names in {
        "api": "cancel enqueue enqueue_many job",
        "api.closing": "pause resume",
        "api.hooks": "HookEvent",
        "api.job_type": "JobType",
        "api.occurrences": "change_occurrence move_occurrence restore_occurrence run_now "
        "skip_occurrence",
        "api.pressure": "aqueue_pressure aresource_pressure queue_pressure resource_pressure",
        "api.schedules": "schedule",
        "api.workflows.compositions": "chain group",
        "api.workflows.workflow": "Workflow",
        "domain.backoff": "Backoff",
        "domain.concurrency": "Concurrency",
        "domain.pressure": "Pressure ResourcePressure",
        "domain.workflows": "If",
        "exceptions": "Cancel Cancelled Discard DuplicateJob EnqueueError HookError JobsError "
        "LeaseLost NotMigrated OperationRefused PayloadError QueueFull ResultNotStored Retry "
        "SignalTimeout Skip Snooze TimeLimitExceeded UnknownJobType UnknownQueue UnknownResource "
        "WorkflowError",
        "lifecycle.stored_files": "Stored",
        "models": "JobStatus RunOutcome",
        "worker.context.run_context": "RunContext current_run",
    }.items()
    for name in names.split()
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    except RuntimeError as error:
        if "INSTALLED_APPS" not in str(error):
            raise
        raise RuntimeError('"django_jobs" is not in INSTALLED_APPS') from None
    globals()[name] = value
    return value
