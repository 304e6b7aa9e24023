"""scheduled -> ready, when the due time has come. Safe in all workers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models.database import fetch

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


# The names of all queues come back only where they are not those that were given: an idle worker
# learns of a queue made later at no statement more.
PEEK = """
SELECT
    ARRAY(SELECT served.name FROM unnest(%(queues)s::text[]) AS served (name)
          WHERE EXISTS (SELECT 1 FROM django_jobs_job AS job
                        WHERE job.queue = served.name AND job.status = 'ready')),
    ARRAY(SELECT queue.name FROM django_jobs_queue AS queue
          WHERE queue.name = ANY(%(queues)s::text[]) AND queue.max_concurrency IS NOT NULL),
    (SELECT extract(epoch FROM min(job.available_at) - clock_timestamp())::float8
     FROM django_jobs_job AS job WHERE job.status = 'scheduled'),
    CASE WHEN %(every)s THEN nullif(
        ARRAY(SELECT name::text FROM django_jobs_queue ORDER BY name), %(queues)s::text[]) END
"""


@dataclass(frozen=True, slots=True)
class Peek:
    """``ready`` queues hold ready jobs, ``limited`` ones have a ``max_concurrency``;
    ``next_due_in`` seconds the next scheduled job is due, in whatever queue. ``queues`` are all
    that there are, where these were asked for and are not those that were given."""

    ready: frozenset[str]
    limited: frozenset[str]
    next_due_in: float | None
    queues: list[str] | None = None


def peek(queues: Sequence[str], *, every: bool = False) -> Peek:
    """What there is to do in ``queues``. ``every`` says that these should be all there are."""
    rows = fetch(PEEK, {"queues": list(queues), "every": every})
    ((ready, limited, next_due_in, others),) = rows
    return Peek(frozenset(ready), frozenset(limited), next_due_in, others)
