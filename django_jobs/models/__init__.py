"""The tables."""

from .job import DeadLetter, Job, JobStatus
from .queue import Queue
from .run import Run, RunOutcome
from .schedule import Schedule
from .tick import Backfill, Tick, TickOutcome
from .worker import Worker, WorkerStatus

__all__ = [
    "Backfill",
    "DeadLetter",
    "Job",
    "JobStatus",
    "Queue",
    "Run",
    "RunOutcome",
    "Schedule",
    "Tick",
    "TickOutcome",
    "Worker",
    "WorkerStatus",
]
