"""Answers of outside calls that a job makes once; a stored answer replaces a second call."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.database import execute, fetch
from .claiming import lease_lost
from .job_columns import IN_LIVE, ClaimedJob

# Fenced, so that an attempt that lost its lease makes no further call.
LOOK_UP = f"""
WITH ours AS MATERIALIZED (
    SELECT id FROM django_jobs_job
    WHERE id = %(id)s AND attempt = %(attempt)s AND worker_id = %(worker)s
      AND {IN_LIVE}
), answered AS (
    UPDATE django_jobs_receipt SET prevented = prevented + 1
    WHERE job_id = (SELECT id FROM ours) AND key = %(key)s
    RETURNING answer, attempt
)
SELECT EXISTS (SELECT 1 FROM ours), (SELECT answer FROM answered), (SELECT attempt FROM answered)
"""

# Not fenced: the call has been made, and the attempt that owns the job by now has to know its
# answer. The first receipt stays.
STORE = """
INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)
VALUES (%(id)s, %(key)s, %(attempt)s, %(answer)s::jsonb, clock_timestamp())
ON CONFLICT (job_id, key) DO NOTHING
"""
STORED = """
SELECT answer FROM django_jobs_receipt WHERE job_id = %(id)s AND key = %(key)s
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a call as JSON text, and the number of the attempt that made the call."""

    text: str
    attempt: int


def look_up(job: ClaimedJob, key: str) -> Answer | None:
    """Return the answer that an earlier call under ``key`` got, and count one more duplicate as
    prevented; None if there is no answer. Raises :class:`LeaseLost` if the job is no longer its
    worker's."""
    parameters = {"id": job.id, "attempt": job.attempt, "worker": job.worker, "key": key}
    ((ours, text, attempt),) = fetch(LOOK_UP, parameters)
    if not ours:
        raise lease_lost(job)
    return None if attempt is None else Answer(text or "null", attempt)


def store(job: ClaimedJob, key: str, answer: str) -> str:
    """Store ``answer`` (JSON text) under ``key``. Return what is stored, which is another attempt's
    answer if that was stored first."""
    parameters = {"id": job.id, "attempt": job.attempt, "key": key, "answer": answer}
    execute(STORE, parameters)
    kept = fetch(STORED, parameters)
    return str(kept[0][0]) if kept else answer
