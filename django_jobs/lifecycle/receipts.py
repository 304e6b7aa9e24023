"""Outside effects that have been made: the answer is kept, and given instead of a second call."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.database import execute, fetch
from .claiming import ClaimedJob, lease_lost

# The question is fenced, so that an attempt which lost its lease calls nobody any more.
LOOK_UP = """
WITH ours AS MATERIALIZED (
    SELECT id FROM django_jobs_job
    WHERE id = %(id)s AND attempt = %(attempt)s AND worker_id = %(worker)s
), answered AS (
    UPDATE django_jobs_receipt SET prevented = prevented + 1
    WHERE job_id = (SELECT id FROM ours) AND key = %(key)s
    RETURNING answer, attempt
)
SELECT EXISTS (SELECT 1 FROM ours), (SELECT answer FROM answered), (SELECT attempt FROM answered)
"""

# Not fenced: the effect has happened, whoever owns the job by now, and that owner has to know. The
# first receipt stays.
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
    """What a call came to, as JSON text, and the attempt that made it."""

    text: str
    attempt: int


def look_up(job: ClaimedJob, key: str) -> Answer | None:
    """The answer that an earlier call under ``key`` got, counted as a duplicate prevented; None if
    there was none. Raises :class:`LeaseLost` if the job is no longer its worker's."""
    parameters = {"id": job.id, "attempt": job.attempt, "worker": job.worker, "key": key}
    ((ours, text, attempt),) = fetch(LOOK_UP, parameters)
    if not ours:
        raise lease_lost(job)
    return None if attempt is None else Answer(text or "null", attempt)


def store(job: ClaimedJob, key: str, answer: str) -> str:
    """Keep ``answer`` (JSON text) under ``key``; returns what is kept, which is another's answer
    where another attempt called at the same time."""
    parameters = {"id": job.id, "attempt": job.attempt, "key": key, "answer": answer}
    execute(STORE, parameters)
    kept = fetch(STORED, parameters)
    return str(kept[0][0]) if kept else answer
