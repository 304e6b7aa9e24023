"""The operator's console: Django's admin for queues, jobs, runs and workers."""

from . import dead_letters, jobs, queues, runs, workers

__all__ = ["dead_letters", "jobs", "queues", "runs", "workers"]
