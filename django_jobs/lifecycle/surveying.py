"""Look, in one statement, at what a worker could do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .database import fetch

# The names of all queues come back only where they are not those that were given: an idle worker
# learns of a queue made later at no statement more.
SURVEY = """
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
class Survey:
    """``ready`` queues hold ready jobs, ``limited`` ones have a ``max_concurrency``;
    ``next_due_in`` seconds the next scheduled job is due, in whatever queue. ``queues`` are all
    that there are, where these were asked for and are not those that were given."""

    ready: frozenset[str]
    limited: frozenset[str]
    next_due_in: float | None
    queues: list[str] | None = None


def survey(queues: Sequence[str], *, every: bool = False) -> Survey:
    """What there is to do in ``queues``. ``every`` says that these should be all there are."""
    rows = fetch(SURVEY, {"queues": list(queues), "every": every})
    ((ready, limited, next_due_in, others),) = rows
    return Survey(frozenset(ready), frozenset(limited), next_due_in, others)
