"""The tables."""

from .job import DeadLetter, Job, JobStatus
from .progress import Progress
from .quarantine import Quarantine
from .queue import Queue
from .receipt import Receipt
from .run import Run, RunOutcome
from .schedule import Schedule
from .tick import Backfill, Tick, TickOutcome
from .worker import Worker, WorkerStatus

__all__ = [
    "Backfill",
    "DeadLetter",
    "Job",
    "JobStatus",
    "Progress",
    "Quarantine",
    "Queue",
    "Receipt",
    "Run",
    "RunOutcome",
    "Schedule",
    "Tick",
    "TickOutcome",
    "Worker",
    "WorkerStatus",
]
