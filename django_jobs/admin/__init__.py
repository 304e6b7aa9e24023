"""The operator's console: Django's admin for queues, jobs, runs, schedules and workers."""

from . import backfills, dead_letters, jobs, quarantines, queues, runs, schedules, ticks, workers

__all__ = [
    "backfills",
    "dead_letters",
    "jobs",
    "quarantines",
    "queues",
    "runs",
    "schedules",
    "ticks",
    "workers",
]
