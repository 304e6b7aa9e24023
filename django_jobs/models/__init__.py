"""The tables."""

from .backlog_sample import BacklogSample
from .bulk_operation import BulkAction, BulkOperation, BulkStatus
from .inspection import Inspection
from .job import DeadLetter, Job, JobStatus, StepSkipped
from .job_type_defaults import JobTypeDefaults
from .progress import Progress
from .quarantine import Quarantine
from .queue import Queue
from .receipt import Receipt
from .resource import BreakerState, Resource
from .resource_outcome import ResourceOutcome
from .run import Run, RunOutcome
from .run_total import ErrorTotal, RunTotal, RunWatermark
from .schedule import Schedule
from .schedule_exception import ScheduleException
from .stored_metrics import Overview, StoredMetrics
from .tenant import Tenant
from .tick import Backfill, Tick, TickOutcome
from .unique_key import UniqueKey
from .worker import Worker, WorkerStatus
from .workflow import (
    Dependency,
    StepCondition,
    WorkflowDefinition,
    WorkflowRun,
    WorkflowStatus,
)

__all__ = [
    "Backfill",
    "BacklogSample",
    "BreakerState",
    "BulkAction",
    "BulkOperation",
    "BulkStatus",
    "DeadLetter",
    "Dependency",
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
    "Run",
    "RunOutcome",
    "RunTotal",
    "RunWatermark",
    "Schedule",
    "ScheduleException",
    "StepCondition",
    "StepSkipped",
    "StoredMetrics",
    "Tenant",
    "Tick",
    "TickOutcome",
    "UniqueKey",
    "Worker",
    "WorkerStatus",
    "WorkflowDefinition",
    "WorkflowRun",
    "WorkflowStatus",
]
