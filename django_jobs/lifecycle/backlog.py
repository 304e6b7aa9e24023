"""The ready jobs of a queue: how many there are, for how long they wait, how fast they run."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from django.utils import timezone

from ..models.database import fetch
from .job_columns import IN_LIVE

MOST_COUNTED = 100_000
"""The highest count of ready jobs in a queue without a ``max_backlog``. A number that reaches it
means "at least"."""


def ready_up_to(most: str) -> str:
    """An expression of a statement that reads ``django_jobs_queue AS queue``: the ready jobs of the
    queue, counted up to the expression ``most``.

    It reads the ready index up to there. The ORDER BY makes it so: for a mere LIMIT the planner may
    read the table and, for a queue without jobs, all of it.
    """
    return f"""(SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT {most}) AS counted)"""


# The oldest ready job is at the head of its queue or, where priorities differ, expected among the
# first thousand.
OLDEST_SECONDS = """(SELECT extract(epoch FROM clock_timestamp() - min(head.available_at))::float8
     FROM (
        SELECT job.available_at FROM django_jobs_job AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT 1000) AS head)"""

BACKLOG = f"""
SELECT queue.max_backlog,
    {ready_up_to("coalesce(queue.max_backlog, %(most)s)")},
    {OLDEST_SECONDS}
FROM django_jobs_queue AS queue
WHERE queue.name = %(queue)s
"""

RATE_SECONDS = 300.0
"""The time whose runs give the rate, at most."""

SAMPLE = 500
"""Runs of that time that are read. Of a queue with a tenth of all runs they are 50, so that its
rate is known to 15 %."""

# The planner leaves out the partitions before ``day``, by the clock of this process. Of 120 days it
# took 21 ms to plan the others, which PostgreSQL leaves out when it has read its own clock.
LATELY = """finished_at >= %(day)s::timestamptz
          AND finished_at BETWEEN
              statement_timestamp() - make_interval(secs => %(seconds)s::float8)
              AND statement_timestamp()"""

# Runs have no index by time, so that a settle need not write it; their ids follow the time. First,
# the run of the period whose id is the lowest of those that are 1, 2, 4, 8, ... below the last one.
# A settle that was rolled back leaves a gap there, of which 200 ids are passed over. Then as many
# of the ids from there on as the sample has, evenly spread: the newest ones alone may be of one
# batch of one queue. Ids in gaps are counted too, as runs of no queue. Each LIMIT makes the planner
# look up an id after the other; without them it joined all runs of the day.
RATES = f"""
WITH last AS MATERIALIZED (
    SELECT pg_sequence_last_value('django_jobs_run_id_seq') AS id
), first AS MATERIALIZED (
    SELECT run.id, run.finished_at
    FROM last, generate_series(0, 40) AS step (power), LATERAL (
        SELECT id, finished_at FROM django_jobs_run
        WHERE id <= last.id - (1::bigint << step.power)
          AND id > last.id - (1::bigint << step.power) - 200
          AND {LATELY}
        ORDER BY id DESC LIMIT 1) AS run
    ORDER BY run.id LIMIT 1
), span AS MATERIALIZED (
    SELECT first.id AS first, last.id - first.id AS ids,
        least(last.id - first.id, %(sample)s) AS read,
        greatest(extract(epoch FROM statement_timestamp() - first.finished_at)::float8, 1)
            AS seconds
    FROM first, last
)
SELECT job.queue, count(*) * min(span.ids)::float8 / min(span.read) / min(span.seconds)
FROM span, generate_series(1, span.read) AS step (number), LATERAL (
    SELECT job_id FROM django_jobs_run
    WHERE id = span.first + span.ids * step.number / span.read AND outcome <> 'released'
      AND {LATELY}
    LIMIT 1) AS run,
LATERAL (
    SELECT queue FROM django_jobs_job WHERE id = run.job_id AND {IN_LIVE}
    UNION ALL
    SELECT queue FROM django_jobs_job
    WHERE id = run.job_id AND status IN ('succeeded', 'cancelled') AND {LATELY}
    LIMIT 1) AS job
GROUP BY job.queue
"""


class Backlog(NamedTuple):
    """The ready jobs of a queue, counted up to ``max_backlog`` or :data:`MOST_COUNTED`."""

    max_backlog: int | None
    ready: int
    oldest_seconds: float | None


def read_backlog(queue: str) -> Backlog | None:
    """The backlog of the queue; None if it has no row."""
    rows = fetch(BACKLOG, {"queue": queue, "most": MOST_COUNTED})
    return Backlog(*rows[0]) if rows else None


def rates() -> dict[str, float]:
    """The attempts that ended per second, of each queue with one in the last five minutes.
    Estimated from a sample of their runs, of the whole time or of more than half of it."""
    day = timezone.now() - timedelta(days=1)
    return dict(fetch(RATES, {"seconds": RATE_SECONDS, "sample": SAMPLE, "day": day}))
