"""The admin pages of queues, jobs, runs, schedules, resources, tenants and workers."""

from . import quarantines, runs, workers
from .jobs import job_admin
from .limits import resource_admin, tenant_admin
from .operations import operation_admin
from .overview import overview_admin
from .queues import queue_admin
from .schedules import backfills, schedule_admin, ticks
from .workflows import definitions
from .workflows import runs as workflow_runs

__all__ = [
    "backfills",
    "definitions",
    "job_admin",
    "operation_admin",
    "overview_admin",
    "quarantines",
    "queue_admin",
    "resource_admin",
    "runs",
    "schedule_admin",
    "tenant_admin",
    "ticks",
    "workers",
    "workflow_runs",
]
