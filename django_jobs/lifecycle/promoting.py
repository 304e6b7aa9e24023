"""scheduled -> ready, when the due time has come; -> blocked, if the job has gates.

So does a job that waits for a signal when its time-out is over. All workers may run it at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..models.database import as_text, fetch, fetch_planned
from .job_columns import AT_THE_GATES
from .pruning import SUCCESSES_KEPT, queues_without_successes

BATCH = 2_000

IS_AWAITING = "status = 'waiting' AND awaits IS NOT NULL"
"""Of jobs that wait for a signal. The condition of a partial index, which is empty without them."""

# statement_timestamp(), because an index cannot be searched with a volatile bound such as
# clock_timestamp().
PROMOTE = f"""
WITH due AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'scheduled' AND available_at <= statement_timestamp()
    ORDER BY available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), timed_out AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE {IS_AWAITING} AND available_at <= statement_timestamp()
    ORDER BY available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job SET status = {AT_THE_GATES}, awaits = NULL
WHERE job.id = ANY(ARRAY(SELECT id FROM due UNION ALL SELECT id FROM timed_out))
RETURNING job.queue
"""


def promote(limit: int = BATCH) -> tuple[int, set[str]]:
    """Make up to ``limit`` due or waiting jobs ready; return their number and their queues."""
    queues = [queue for (queue,) in fetch(PROMOTE, {"limit": limit})]
    return len(queues), set(queues)


# Reads the head of each queue in the order of its index. For EXISTS the planner may expect a ready
# job on the first page of the table; if the queue has none, it reads all of them. Returns the names
# of all queues only if they differ from those given, so that an idle worker learns of a new queue
# without a further statement.
PEEK = f"""
SELECT
    ARRAY(SELECT served.name FROM unnest(%(queues)s::text[]) AS served (name)
          WHERE (SELECT job.id FROM django_jobs_job_live AS job
                 WHERE job.queue = served.name AND job.status = 'ready'
                 ORDER BY job.rank, job.id LIMIT 1) IS NOT NULL),
    ARRAY(SELECT queue.name FROM django_jobs_queue AS queue
          WHERE queue.name = ANY(%(queues)s::text[]) AND queue.max_concurrency IS NOT NULL),
    (SELECT jsonb_object_agg(queue.name, {SUCCESSES_KEPT})::text
     FROM django_jobs_queue AS queue
     WHERE queue.name = ANY(%(queues)s::text[]) AND queue.retention ? 'succeeded'),
    extract(epoch FROM least(
        (SELECT min(available_at) FROM django_jobs_job_live WHERE status = 'scheduled'),
        (SELECT min(available_at) FROM django_jobs_job_live WHERE {IS_AWAITING})
    ) - clock_timestamp())::float8,
    CASE WHEN %(every)s THEN nullif(
        ARRAY(SELECT name::text FROM django_jobs_queue ORDER BY name), %(queues)s::text[]) END,
    (SELECT job.id FROM django_jobs_job_live AS job
     WHERE job.status = 'blocked' AND job.gates IS NOT NULL
     ORDER BY job.gates, job.rank, job.id LIMIT 1) IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Peek:
    """What a worker could do next.

    ``ready`` are the queues with ready jobs, ``limited`` those with a ``max_concurrency``, and
    ``unkept`` those whose retention deletes a job when it succeeds.
    ``next_due_in`` is the seconds until the next scheduled job of any queue is due, or a wait for a
    signal is over; None without one. ``queues`` are the names of all queues, if they were asked for
    and differ from those given; otherwise None. ``gated``: jobs wait at their gates.
    """

    ready: frozenset[str]
    limited: frozenset[str]
    unkept: frozenset[str]
    next_due_in: float | None
    queues: list[str] | None = None
    gated: bool = False


def peek(queues: Sequence[str], *, every: bool = False) -> Peek:
    """Look for work in ``queues``, in one statement. With ``every``, ``queues`` should be all
    queues there are; if they are not, the answer names all."""
    rows = fetch_planned(as_text(PEEK, {"queues": list(queues), "every": every}), None)
    ((ready, limited, own, next_due_in, others, gated),) = rows
    unkept = queues_without_successes(queues, json.loads(own or "{}"))
    return Peek(frozenset(ready), frozenset(limited), unkept, next_due_in, others, gated)
