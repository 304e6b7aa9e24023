"""Questions about running jobs, and the answers of their workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..domain.errors import clean
from ..models.database import execute, fetch

# The table stays small without a maintenance task.
ASK = """
WITH gone AS (
    DELETE FROM django_jobs_inspection WHERE asked_at < clock_timestamp() - interval '1 hour'
)
INSERT INTO django_jobs_inspection (
    job_id, attempt, worker_id, asked_by, asked_at, thread, stack)
SELECT job.id, job.attempt, job.worker_id, %(by)s, clock_timestamp(), '', ''
FROM django_jobs_job AS job
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'running'
RETURNING id, job_id
"""

# After a minute nobody waits for the answer any more.
ASKED = """
SELECT id, job_id, attempt, worker_id FROM django_jobs_inspection
WHERE answered_at IS NULL AND worker_id = ANY(%(workers)s::bigint[])
  AND asked_at > clock_timestamp() - interval '1 minute'
ORDER BY id
"""

ANSWER = """
UPDATE django_jobs_inspection SET answered_at = clock_timestamp(), process = %(process)s,
    thread = %(thread)s, ran_seconds = %(ran_seconds)s, stack = %(stack)s
WHERE id = %(id)s AND answered_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Question:
    """An unanswered question about an attempt of a worker."""

    id: int
    job: int
    attempt: int
    worker: int


def ask(ids: Sequence[int], by: str) -> dict[int, int]:
    """Ask what these jobs are doing. Returns the ids of the questions by those of the jobs that are
    running."""
    return {job: id_ for id_, job in fetch(ASK, {"ids": list(ids), "by": by[:200]})}


def asked(workers: Sequence[int]) -> list[Question]:
    """The questions to these workers."""
    return [Question(*row) for row in fetch(ASKED, {"workers": list(workers)})]


def record(question: Question, *, process: int, thread: str, ran: float, stack: str) -> None:
    """Record the answer to a question, unless it has one."""
    texts = {"thread": clean(thread)[:200], "stack": clean(stack)}
    execute(ANSWER, {"id": question.id, "process": process, "ran_seconds": ran, **texts})
