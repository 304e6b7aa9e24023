"""scheduled -> ready, when the due time has come. Safe in all workers at once."""

from __future__ import annotations

from .database import fetch

BATCH = 2_000

# statement_timestamp() and not clock_timestamp(): a volatile bound cannot be searched in an index.
PROMOTE = """
WITH due AS MATERIALIZED (
    SELECT id FROM django_jobs_job
    WHERE status = 'scheduled' AND available_at <= statement_timestamp()
    ORDER BY available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE django_jobs_job AS job SET status = 'ready'
WHERE job.id = ANY(ARRAY(SELECT id FROM due))
RETURNING job.queue
"""


def promote(limit: int = BATCH) -> tuple[int, set[str]]:
    """Make up to ``limit`` due jobs ready; return how many, and in which queues."""
    queues = [queue for (queue,) in fetch(PROMOTE, {"limit": limit})]
    return len(queues), set(queues)
