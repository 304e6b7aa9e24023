"""succeeded, cancelled -> gone.

Deletes jobs after their retention with their runs, progress and receipts, rows of workers that
ended long ago, and old ticks. Dead jobs are deleted by ``dead_letters`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..domain.durations import LONGEST_AGE
from ..models.database import execute, fetch

PAGE = 2_000
"""Jobs that one statement looks at."""

EVERY_OTHER_QUEUE = "*"
LONGEST_KEPT = LONGEST_AGE
"""Seconds. Anything longer means for ever, because PostgreSQL rejects an interval of a million
years."""

Rules = Mapping[str, Mapping[str, float | None]]
"""Seconds to keep a succeeded or cancelled job, by queue and status. The queue ``*`` stands for all
that are not named. A job whose status is missing or None is kept for ever."""

# The end of a statement that begins WITH the ids of jobs, ``expired``. Rows are found
# through arrays of ids, which makes an index search no matter how large the planner believes the
# page to be.
DELETE_EXPIRED = """
runs AS (
    DELETE FROM django_jobs_run AS run
    WHERE run.job_id = ANY(ARRAY(SELECT id FROM expired))
), progress AS (
    DELETE FROM django_jobs_progress AS progress
    WHERE progress.job_id = ANY(ARRAY(SELECT id FROM expired))
), receipts AS (
    DELETE FROM django_jobs_receipt AS receipt
    WHERE receipt.job_id = ANY(ARRAY(SELECT id FROM expired))
), jobs AS (
    DELETE FROM django_jobs_job AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM expired))
    RETURNING job.id
)
"""

# There is no index on finished_at: it would slow every settle. Ids follow created_at, so expired
# jobs are at the low end of the primary key, and a page that is younger than the shortest retention
# ends the walk. Expiry is decided on the locked row.
PRUNE = f"""
WITH page AS MATERIALIZED (
    SELECT id, created_at FROM django_jobs_job
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(page)s
), expired AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM page))
      AND job.status IN ('succeeded', 'cancelled')
      AND job.finished_at < statement_timestamp() - make_interval(secs => (
            coalesce(%(rules)s::jsonb -> job.queue, %(rules)s::jsonb -> '*') ->> job.status
          )::float8)
    FOR UPDATE OF job SKIP LOCKED
), {DELETE_EXPIRED}
SELECT (SELECT count(*) FROM jobs), max(id), count(*),
    min(created_at) > statement_timestamp() - make_interval(secs => %(shortest)s::float8)
FROM page
"""

COUNT_EXPIRED = """
WITH page AS MATERIALIZED (
    SELECT id, queue, status, finished_at, created_at FROM django_jobs_job
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(page)s
)
SELECT count(*) FILTER (
        WHERE status IN ('succeeded', 'cancelled')
          AND finished_at < statement_timestamp() - make_interval(secs => (
                coalesce(%(rules)s::jsonb -> queue, %(rules)s::jsonb -> '*') ->> status
              )::float8)),
    max(id), count(*),
    min(created_at) > statement_timestamp() - make_interval(secs => %(shortest)s::float8)
FROM page
"""

# Their runs keep the worker's number; only its name is lost.
PRUNE_WORKERS = """
DELETE FROM django_jobs_worker WHERE id = ANY(ARRAY(
    SELECT id FROM django_jobs_worker
    WHERE status IN ('stopped', 'lost')
      AND stopped_at < statement_timestamp() - make_interval(secs => %(older)s::float8)
    LIMIT 1000
    FOR UPDATE SKIP LOCKED))
"""

# Ids follow created_at here too: old ticks are at the low end of the primary key.
PRUNE_TICKS = """
WITH page AS MATERIALIZED (
    SELECT id FROM django_jobs_tick ORDER BY id LIMIT %(page)s
), old AS MATERIALIZED (
    SELECT id FROM django_jobs_tick
    WHERE id = ANY(ARRAY(SELECT id FROM page))
      AND created_at < statement_timestamp() - make_interval(secs => %(older)s::float8)
    FOR UPDATE SKIP LOCKED
)
DELETE FROM django_jobs_tick WHERE id = ANY(ARRAY(SELECT id FROM old))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One step of the walk: how many jobs it deleted, and the id behind which the next step begins;
    None at the end."""

    deleted: int
    next_after: int | None


def prune(rules: Rules, *, after: int = 0, page: int = PAGE, dry_run: bool = False) -> Page:
    """Delete the jobs past their retention among the next ``page`` jobs behind id ``after``.

    ``dry_run`` only counts them. Jobs that another session has locked are left for the next walk.
    """
    kept = [keep for rule in rules.values() for keep in rule.values() if keep is not None]
    if not kept:
        return Page(deleted=0, next_after=None)
    bounded = {queue: _bounded(rule) for queue, rule in rules.items()}
    parameters = {
        "after": after,
        "page": page,
        "rules": json.dumps(bounded),
        "shortest": min(*kept, LONGEST_KEPT),
    }
    deleted, last, seen, too_young = fetch(COUNT_EXPIRED if dry_run else PRUNE, parameters)[0]
    return Page(deleted=deleted, next_after=None if seen < page or too_young else last)


def prune_workers(older_than: float) -> int:
    """Delete up to 1,000 rows of workers that ended more than ``older_than`` seconds ago; return
    how many."""
    return execute(PRUNE_WORKERS, {"older": min(older_than, LONGEST_KEPT)})


def prune_ticks(older_than: float, page: int = PAGE) -> int:
    """Delete the ticks made more than ``older_than`` seconds ago among the ``page`` oldest; return
    how many."""
    return execute(PRUNE_TICKS, {"older": min(older_than, LONGEST_KEPT), "page": page})


def _bounded(rule: Mapping[str, float | None]) -> dict[str, float]:
    return {
        status: keep for status, keep in rule.items() if keep is not None and keep < LONGEST_KEPT
    }
