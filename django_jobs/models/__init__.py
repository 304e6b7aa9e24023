"""The tables."""

from django.apps import apps

if apps.apps_ready and not apps.is_installed("django_jobs"):
    raise RuntimeError('"django_jobs" is not in INSTALLED_APPS')

from .bulk_operation import BulkAction, BulkOperation, BulkStatus
from .job import DeadLetter, Job, JobStatus, StepSkipped
from .job_type import JobTypeDefaults, Quarantine
from .queue import Queue
from .resource import BreakerState, Resource, Tenant
from .run import Effect, Inspection, Progress, Receipt, Run, RunOutcome, StoredFile, UniqueKey
from .schedule import Schedule
from .tick import Backfill, ScheduleException, Tick, TickOutcome
from .totals import (
    Alert,
    BacklogSample,
    ErrorTotal,
    Overview,
    ResourceOutcome,
    ResourceTotal,
    RunTotal,
    RunWatermark,
    StoredMetrics,
    TenantTotal,
)
from .worker import Worker, WorkerStatus
from .workflow import Dependency, StepCondition, WorkflowDefinition, WorkflowRun, WorkflowStatus

__all__ = [
    "Alert",
    "Backfill",
    "BacklogSample",
    "BreakerState",
    "BulkAction",
    "BulkOperation",
    "BulkStatus",
    "DeadLetter",
    "Dependency",
    "Effect",
    "ErrorTotal",
    "Inspection",
    "Job",
    "JobStatus",
    "JobTypeDefaults",
    "Overview",
    "Progress",
    "Quarantine",
    "Queue",
    "Receipt",
    "Resource",
    "ResourceOutcome",
    "ResourceTotal",
    "Run",
    "RunOutcome",
    "RunTotal",
    "RunWatermark",
    "Schedule",
    "ScheduleException",
    "StepCondition",
    "StepSkipped",
    "StoredFile",
    "StoredMetrics",
    "Tenant",
    "TenantTotal",
    "Tick",
    "TickOutcome",
    "UniqueKey",
    "Worker",
    "WorkerStatus",
    "WorkflowDefinition",
    "WorkflowRun",
    "WorkflowStatus",
]
