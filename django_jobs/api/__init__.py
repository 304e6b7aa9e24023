"""Declare job types and schedules, and ask for jobs.

shortcuts          job, enqueue, enqueue_many, cancel
job_type           the declared job type: binds arguments, inserts jobs
validation         which options a job type may have
payload_versions   upgrades of older payloads
schedules          schedule(), and the declared schedules written after migrate
schedule_requests  the jobs that a schedule asks for
"""

from __future__ import annotations

from .job_type import JobType
from .shortcuts import cancel, enqueue, enqueue_many, job, payload_problem, replay_problem

__all__ = [
    "JobType",
    "cancel",
    "enqueue",
    "enqueue_many",
    "job",
    "payload_problem",
    "replay_problem",
]
