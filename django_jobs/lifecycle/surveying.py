"""Look, in one statement, at what a worker could do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .database import fetch

SURVEY = """
SELECT
    ARRAY(SELECT served.name FROM unnest(%(queues)s::text[]) AS served (name)
          WHERE EXISTS (SELECT 1 FROM django_jobs_job AS job
                        WHERE job.queue = served.name AND job.status = 'ready')),
    ARRAY(SELECT queue.name FROM django_jobs_queue AS queue
          WHERE queue.name = ANY(%(queues)s::text[]) AND queue.max_concurrency IS NOT NULL),
    (SELECT extract(epoch FROM min(job.available_at) - clock_timestamp())::float8
     FROM django_jobs_job AS job WHERE job.status = 'scheduled')
"""


@dataclass(frozen=True, slots=True)
class Survey:
    """``ready`` queues hold ready jobs, ``limited`` ones have a ``max_concurrency``;
    ``next_due_in`` seconds the next scheduled job is due, in whatever queue."""

    ready: frozenset[str]
    limited: frozenset[str]
    next_due_in: float | None


def survey(queues: Sequence[str]) -> Survey:
    """What there is to do in ``queues``."""
    ((ready, limited, next_due_in),) = fetch(SURVEY, {"queues": list(queues)})
    return Survey(frozenset(ready), frozenset(limited), next_due_in)
