"""Declares job types, schedules and workflows, and enqueues jobs."""

from __future__ import annotations

from .job_type import JobType
from .shortcuts import (
    cancel,
    enqueue,
    enqueue_many,
    job,
    payload_problem,
    replay_problem,
    stored_payload_problem,
)

__all__ = [
    "JobType",
    "cancel",
    "enqueue",
    "enqueue_many",
    "job",
    "payload_problem",
    "replay_problem",
    "stored_payload_problem",
]
