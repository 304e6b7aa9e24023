"""The tables."""

from .job import DeadLetter, Job, JobStatus
from .queue import Queue
from .run import Run, RunOutcome
from .worker import Worker, WorkerStatus

__all__ = [
    "DeadLetter",
    "Job",
    "JobStatus",
    "Queue",
    "Run",
    "RunOutcome",
    "Worker",
    "WorkerStatus",
]
