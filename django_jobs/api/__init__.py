"""Declares job types and schedules, and enqueues jobs.

shortcuts          job, enqueue, enqueue_many, cancel
job_type           JobType: binds arguments, inserts jobs
validation         validates the options of @job and using(), and which of them cannot act
duplicates         what becomes of a request whose idempotency key is held
closing            pause and resume of queues, schedules, resources, tenants, job types
hooks              calls the hooks of the project around an enqueue
payloads           checks arguments against annotations, and those of enqueue_many
editing            edits a job that has not started, or a dead one
gating             finds the gates of a job
generations        counts the handlers that led to a job
pressure           queue_pressure, resource_pressure
schedules          schedule(), their jobs, and writing the declared ones after migrate
occurrences        exceptions of single due times of schedules
sql_defaults       stores the options of job types for the SQL function
steps              a step of a workflow, a chain or a group
waiting            Job.wait() and Job.await_end(), and what hears of ends
workflows          (sub-room) Workflow, chain, group
"""

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
