"""The ids of tasks: those of jobs, in the shape of a UUID."""

from __future__ import annotations

from uuid import UUID

PREFIX = int.from_bytes(b"djob", "big") << 96 | 0x8000 << 64 | 0x8 << 60
"""Of a UUID of version 8, whose bits have no meaning but ours. The last 60 are the job's id."""
LARGEST = (1 << 60) - 1


def task_id_of(job_id: int) -> str:
    """The id of the task that is the job with this id. Columns of packages that store ids of tasks
    take it, because it is a UUID."""
    return str(UUID(int=PREFIX | job_id))


def job_id_of(task_id: str) -> int | None:
    """The id of the job, or None for an id that the caller has chosen."""
    try:
        number = UUID(task_id).int
    except ValueError:
        return None
    return number & LARGEST if number & ~LARGEST == PREFIX else None
