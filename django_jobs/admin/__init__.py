"""The admin pages of queues, jobs, runs, schedules and workers."""

from . import quarantines, queues, runs, workers
from .jobs import dead_letters, job_admin
from .schedules import backfills, schedule_admin, ticks

__all__ = [
    "backfills",
    "dead_letters",
    "job_admin",
    "quarantines",
    "queues",
    "runs",
    "schedule_admin",
    "ticks",
    "workers",
]
