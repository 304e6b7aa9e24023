"""The states of a job and the outcomes of a run, and which job states are final."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The status of a job. docs/lifecycle.md has the diagram."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    RELEASED = "released"


FAILURES = frozenset({RunState.FAILED, RunState.TIMED_OUT, RunState.LOST})
"""The outcomes of an attempt that went wrong: it was neither stopped nor put off."""


class BulkState(StrEnum):
    """The state of an operation on many jobs."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


CRASHED = "Crashed"
"""The error class of a run that crashed a process in which it ran alone."""

FINAL = frozenset({JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED})
LIVE = frozenset(JobState) - FINAL
"""A live job holds its idempotency key; a final one does not."""

PENDING = LIVE - {JobState.RUNNING}
"""Jobs in these states are cancelled at once; a running one is asked to stop."""

# The states to which settling may move a running job. decide() is tested against it.
AFTER_RUNNING: dict[RunState, frozenset[JobState]] = {
    RunState.SUCCEEDED: frozenset({JobState.SUCCEEDED}),
    RunState.FAILED: frozenset(
        {JobState.SCHEDULED, JobState.BLOCKED, JobState.DEAD, JobState.CANCELLED}
    ),
    RunState.TIMED_OUT: frozenset(
        {JobState.SCHEDULED, JobState.BLOCKED, JobState.DEAD, JobState.CANCELLED}
    ),
    RunState.LOST: frozenset({JobState.READY, JobState.DEAD, JobState.CANCELLED}),
    RunState.SNOOZED: frozenset(
        {JobState.SCHEDULED, JobState.WAITING, JobState.DEAD, JobState.CANCELLED}
    ),
    RunState.CANCELLED: frozenset({JobState.CANCELLED}),
    RunState.RELEASED: frozenset({JobState.READY, JobState.DEAD, JobState.CANCELLED}),
}

UNFINISHED = frozenset({BulkState.PENDING, BulkState.RUNNING})
"""States of an operation on many jobs that has jobs left."""
