"""dead -> gone.

Deletes the dead jobs that are more or older than their limit, the oldest first, and sends
``pre_prune_dead`` before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from ..domain.errors import ErrorReport
from ..domain.retention import Kept
from ..models.database import fetch, jobs_connection
from ..signals import pre_prune_dead
from .pruning import LIVE, LONGEST_KEPT, PAGE, delete_expired, runs_go_with_jobs

# The names of the queues that have dead jobs, found with one step in the index for each.
QUEUES = """
WITH RECURSIVE found AS (
    (SELECT queue FROM django_jobs_job_live WHERE status = 'dead' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue FROM django_jobs_job_live AS job
            WHERE job.status = 'dead' AND job.queue > found.queue
            ORDER BY job.queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL
"""

ANY_DEAD = """(
    SELECT queue FROM django_jobs_job_live WHERE status = 'dead' ORDER BY queue LIMIT 1
) IS NOT NULL"""

# The newest job that is too old or one too many is the bound; all up to it have to go. So the index
# is read from both of its ends, up to the number that is kept and for a page. Both limits are
# tested again on the locked row: a job that was replayed meanwhile stays. Steps of workflows go
# with their run.
BEYOND = """
WITH bound AS MATERIALIZED (
    SELECT finished_at, id FROM (
        (SELECT finished_at, id FROM django_jobs_job_live
         WHERE %(number)s::bigint IS NOT NULL AND workflow_run_id IS NULL
           AND status = 'dead' AND {column} = %(name)s AND job_type <> ALL(%(but)s::text[])
         ORDER BY finished_at DESC, id DESC
         OFFSET %(number)s::bigint LIMIT 1)
        UNION ALL
        SELECT statement_timestamp() - make_interval(secs => %(age)s::float8), 0
    ) AS bounds
    WHERE finished_at IS NOT NULL
    ORDER BY finished_at DESC, id DESC LIMIT 1
)
SELECT job.id, job.job_type, job.queue,
    CASE WHEN job.finished_at < statement_timestamp() - make_interval(secs => %(age)s::float8)
         THEN 'age' ELSE 'number' END AS reason
FROM django_jobs_job_live AS job
WHERE job.status = 'dead' AND job.{column} = %(name)s AND job.job_type <> ALL(%(but)s::text[])
  AND job.workflow_run_id IS NULL
  AND (job.finished_at, job.id) <= ((SELECT finished_at FROM bound), (SELECT id FROM bound))
  AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
"""
TAKE = f"{BEYOND} ORDER BY job.finished_at, job.id LIMIT %(page)s FOR UPDATE OF job SKIP LOCKED"
COUNT = f"""
SELECT job_type, queue, reason, count(*) FROM ({BEYOND}) AS beyond
GROUP BY job_type, queue, reason
"""

# A receiver may have replayed some of them.
DELETE = f"""
WITH expired AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live WHERE id = ANY(%(ids)s::bigint[]) AND status = 'dead'
), {delete_expired(LIVE)}
SELECT id FROM jobs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLimit:
    """What is kept of the dead jobs of one queue, or of one job type in all queues. ``but`` are job
    types that do not count, because they have a limit themselves."""

    column: Literal["queue", "job_type"]
    name: str
    kept: Kept
    but: Sequence[str] = ()


class Group(NamedTuple):
    """Dead jobs of which a receiver learns at once. ``reason`` is the limit that they exceed:
    ``age`` or ``number``."""

    job_type: str
    queue: str
    reason: str


class PruningRefused(Exception):
    """A receiver of ``pre_prune_dead`` raised or broke the transaction. Nothing was deleted."""


def queues_with_dead() -> list[str]:
    return [name for (name,) in fetch(QUEUES, {})]


def prune_dead(limit: DeadLimit, *, queue: str | None = None, page: int = PAGE) -> Counter[Group]:
    """Delete the oldest ``page`` jobs beyond the limit, or those of them in ``queue``; return how
    many. A group of which receivers replayed all jobs counts 0; without a group there were none
    left. Jobs that another session has locked are left for the next run.

    Raises :class:`PruningRefused`.
    """
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(TAKE.format(column=limit.column), _parameters(limit, queue) | {"page": page})
        if not rows:
            return Counter()
        groups: dict[Group, list[int]] = defaultdict(list)
        for id_, *group in rows:
            groups[Group(*group)].append(id_)
        _send_signals(groups)
        ids = [row[0] for row in rows]
        parameters = {"ids": ids, "with_runs": runs_go_with_jobs()}
        deleted = {id_ for (id_,) in fetch(DELETE, parameters)}
    return Counter({group: len(deleted.intersection(ids)) for group, ids in groups.items()})


def count_dead(limit: DeadLimit, *, queue: str | None = None) -> Counter[Group]:
    """How many jobs are beyond the limit."""
    rows = fetch(COUNT.format(column=limit.column), _parameters(limit, queue))
    return Counter({Group(*group): number for *group, number in rows})


def _parameters(limit: DeadLimit, queue: str | None) -> dict[str, Any]:
    age = limit.kept.age
    return {
        "name": limit.name,
        "number": limit.kept.number,
        "age": None if age is None else min(age, LONGEST_KEPT),
        "but": list(limit.but),
        "queue": queue,
    }


def _send_signals(groups: Mapping[Group, list[int]]) -> None:
    for (job_type, queue, reason), ids in groups.items():
        try:
            pre_prune_dead.send(job_type, job_ids=ids, queue=queue, reason=reason)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            summary = ErrorReport.of(error).summary
            raise PruningRefused(f"a receiver of pre_prune_dead raised {summary}") from error
        if _is_broken(jobs_connection()):
            raise PruningRefused("a receiver of pre_prune_dead hid an error of the database")


def _is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Whether nothing more can be done in this transaction."""
    status = connection.connection.info.transaction_status
    return connection.needs_rollback or status != TransactionStatus.INTRANS
