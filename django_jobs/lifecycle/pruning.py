"""succeeded, cancelled -> gone.

Deletes jobs after their retention with their runs, progress and receipts, rows of workers that
ended long ago, old ticks, and unique keys whose time is over. Dead jobs are deleted by
``dead_letters`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..conf import conf
from ..domain.numbers import LONGEST_AGE, seconds_of
from ..models.database import execute, fetch

PAGE = 2_000
"""Jobs that one statement looks at."""

EVERY_OTHER_QUEUE = "*"
LONGEST_KEPT = LONGEST_AGE
"""Seconds. Anything longer means for ever: PostgreSQL rejects an interval of a million years."""

SUCCESSES_KEPT = """CASE WHEN length((queue.retention -> 'succeeded')::text) > 1000
    THEN 'true' ELSE queue.retention -> 'succeeded' END"""
"""How long a queue keeps successes, of a statement that reads ``django_jobs_queue``: true, which is
no age, in place of what is so long that Python may not read it."""

Rules = Mapping[str, Mapping[str, float | None]]
"""Seconds to keep a succeeded or cancelled job, by queue and status. The queue ``*`` stands for all
that are not named. A job whose status is missing or None is kept for ever."""

ALL_JOBS = "django_jobs_job"
LIVE, HISTORY = "django_jobs_job_live", "django_jobs_job_history"
WITHOUT_PARTITION = "django_jobs_job_history_default"
"""The jobs that ended at a time for which there was no partition."""


def delete_expired(table: str) -> str:
    """The end of a statement that begins WITH the ids of jobs, ``expired``, of one table.

    Rows are found through arrays of ids, which makes an index search no matter how large the
    planner believes the page to be.
    """
    return f"""
runs AS (
    DELETE FROM django_jobs_run AS run
    WHERE %(with_runs)s AND run.job_id = ANY(ARRAY(SELECT id FROM expired))
), progress AS (
    DELETE FROM django_jobs_progress AS progress
    WHERE progress.job_id = ANY(ARRAY(SELECT id FROM expired))
), receipts AS (
    DELETE FROM django_jobs_receipt AS receipt
    WHERE receipt.job_id = ANY(ARRAY(SELECT id FROM expired))
), jobs AS (
    DELETE FROM {table} AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM expired))
    RETURNING job.id
)
"""


def _prune(table: str) -> str:
    return f"""
WITH page AS MATERIALIZED (
    SELECT id, created_at FROM {table}
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(page)s
), expired AS MATERIALIZED (
    SELECT job.id FROM {table} AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM page)) AND job.workflow_run_id IS NULL
      AND job.finished_at < statement_timestamp() - make_interval(secs => (
            coalesce(%(rules)s::jsonb -> job.queue, %(rules)s::jsonb -> '*') ->> job.status
          )::float8)
    FOR UPDATE OF job SKIP LOCKED
), {delete_expired(table)}
SELECT (SELECT count(*) FROM jobs), max(id), count(*),
    min(created_at) > statement_timestamp() - make_interval(secs => %(shortest)s::float8)
FROM page
"""


# There is no index on finished_at: it would slow every settle. Ids follow created_at, so expired
# jobs are at the low end of the primary key, and a page that is younger than the shortest retention
# ends the walk. Expiry is decided on the locked row.
PRUNE = {table: _prune(table) for table in (HISTORY, WITHOUT_PARTITION)}

COUNT_EXPIRED = """
WITH page AS MATERIALIZED (
    SELECT id, queue, status, finished_at, created_at, workflow_run_id FROM django_jobs_job_history
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(page)s
)
SELECT count(*) FILTER (
        WHERE workflow_run_id IS NULL
          AND finished_at < statement_timestamp() - make_interval(secs => (
                coalesce(%(rules)s::jsonb -> queue, %(rules)s::jsonb -> '*') ->> status
              )::float8)),
    max(id), count(*),
    min(created_at) > statement_timestamp() - make_interval(secs => %(shortest)s::float8)
FROM page
"""


# Runs without a partition whose age is over. Those of live and dead jobs stay. OFFSET 0 makes an
# index search of each job, where the planner might read the whole table.
PRUNE_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id, job_id, finished_at FROM django_jobs_run_default
    WHERE id > %(after)s::bigint
    ORDER BY id
    LIMIT %(page)s
), gone AS (
    DELETE FROM django_jobs_run_default WHERE id = ANY(ARRAY(
        SELECT id FROM page
        WHERE finished_at < statement_timestamp() - make_interval(secs => %(older)s::float8)
          AND NOT EXISTS (
            SELECT 1 FROM django_jobs_job_live AS job WHERE job.id = page.job_id OFFSET 0)))
    RETURNING id
)
SELECT (SELECT count(*) FROM gone), max(id), count(*) FROM page
"""

# The steps of a run stay until it has expired, and then go with it: page by page, and its row with
# the last of them. With the first gone it is ``expired``, and cannot be restarted. A dead step can
# be replayed as long as other dead jobs. A step that another session has locked stays for now, with
# its run.
PRUNE_WORKFLOWS = f"""
WITH run AS MATERIALIZED (
    SELECT run.id FROM django_jobs_workflowrun AS run
    WHERE run.finished_at < statement_timestamp() - make_interval(secs => %(older)s::float8)
      AND run.status <> 'running'
      AND (coalesce(run.finished_at < statement_timestamp()
                    - make_interval(secs => %(dead)s::float8), false)
           OR NOT EXISTS (
            SELECT 1 FROM django_jobs_job_live AS job
            WHERE job.workflow_run_id = run.id OFFSET 0))
    ORDER BY run.finished_at
    LIMIT %(page)s
    FOR UPDATE SKIP LOCKED
), step AS MATERIALIZED (
    SELECT id, workflow_run_id FROM django_jobs_job
    WHERE workflow_run_id = ANY(ARRAY(SELECT id FROM run))
    LIMIT %(page)s
), expired AS MATERIALIZED (
    SELECT id, workflow_run_id FROM django_jobs_job
    WHERE id = ANY(ARRAY(SELECT id FROM step))
    FOR UPDATE SKIP LOCKED
), left_over AS MATERIALIZED (
    SELECT workflow_run_id FROM step WHERE id NOT IN (SELECT id FROM expired)
), edges AS (
    DELETE FROM django_jobs_dependency WHERE child_id = ANY(ARRAY(SELECT id FROM expired))
), {delete_expired(ALL_JOBS).strip()}, gone AS (
    DELETE FROM django_jobs_workflowrun
    WHERE id = ANY(ARRAY(SELECT id FROM run)) AND (SELECT count(*) FROM step) < %(page)s
      AND id NOT IN (SELECT workflow_run_id FROM left_over)
    RETURNING id
), begun AS (
    UPDATE django_jobs_workflowrun SET status = 'expired'
    WHERE id = ANY(ARRAY(SELECT workflow_run_id FROM expired)) AND status <> 'expired'
      AND ((SELECT count(*) FROM step) >= %(page)s
           OR id IN (SELECT workflow_run_id FROM left_over))
)
SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM gone)
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

# What retention deletes within a minute. In partitions there may be some if a queue has its own
# retention, or if this role may not drop them. EXISTS where all rows count; the heads of an index
# where the planner might read the table.
ANY_EXPIRED = """
EXISTS (SELECT FROM django_jobs_job_history_default)
OR EXISTS (SELECT FROM django_jobs_queue WHERE retention IS NOT NULL)
OR NOT (SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class
        WHERE oid IN (to_regclass('django_jobs_job_history'), to_regclass('django_jobs_run')))
OR (SELECT min(expires_at) FROM django_jobs_uniquekey) <= statement_timestamp()
OR (SELECT min(expires_at) FROM django_jobs_effect) <= statement_timestamp()
OR EXISTS (SELECT FROM django_jobs_resourceoutcome)
"""
ANY_RUN_LEFT = "EXISTS (SELECT FROM django_jobs_run_default)"
ANY_EXPIRED_WORKFLOW = """EXISTS (
    SELECT FROM django_jobs_workflowrun
    WHERE finished_at < statement_timestamp() - make_interval(secs => {seconds})
      AND status <> 'running')"""

# Locked rows are of enqueues that take over an expired key.
PRUNE_UNIQUE_KEYS = """
DELETE FROM django_jobs_uniquekey WHERE id = ANY(ARRAY(
    SELECT id FROM django_jobs_uniquekey
    WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at
    LIMIT %(page)s
    FOR UPDATE SKIP LOCKED))
"""

# Ids follow happened_at. The last window may be that of any resource.
PRUNE_RESOURCE_OUTCOMES = """
DELETE FROM django_jobs_resourceoutcome WHERE id = ANY(ARRAY(
    SELECT id FROM (
        SELECT id, happened_at FROM django_jobs_resourceoutcome ORDER BY id LIMIT %(page)s
    ) AS page
    WHERE happened_at < statement_timestamp() - make_interval(secs => 60 + (
        SELECT least(coalesce(max(breaker_window), 0), 1e9) FROM django_jobs_resource))))
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

# An exception goes when the tick of its due time does. There are few, so no index has their times.
PRUNE_EXCEPTIONS = """
DELETE FROM django_jobs_scheduleexception WHERE id = ANY(ARRAY(
    SELECT id FROM django_jobs_scheduleexception
    WHERE greatest(due_at, moved_to)
        < statement_timestamp() - make_interval(secs => %(older)s::float8)
    LIMIT %(page)s
    FOR UPDATE SKIP LOCKED))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One step of the walk: how many rows it deleted, behind which id the next begins, if any."""

    deleted: int
    next_after: int | None


def prune(
    rules: Rules, *, after: int = 0, page: int = PAGE, table: str = HISTORY, dry_run: bool = False
) -> Page:
    """Delete the jobs past their retention among the next ``page`` jobs of ``table`` behind id
    ``after``: of all finished ones, or of those without a partition.

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
        "with_runs": runs_go_with_jobs(),
    }
    statement = COUNT_EXPIRED if dry_run else PRUNE[table]
    deleted, last, seen, too_young = fetch(statement, parameters)[0]
    return Page(deleted=deleted, next_after=None if seen < page or too_young else last)


def runs_go_with_jobs() -> bool:
    """Whether runs are deleted with their job: ``RETENTION`` gives them no age."""
    return conf().retention["runs"] is None


def queues_without_successes(queues: Iterable[str], own: Mapping[str, Any]) -> frozenset[str]:
    """Those of the queues whose jobs are deleted when they succeed: they are kept for 0 seconds.
    ``own`` has the retention of successes by queue, where a queue has its own."""
    default = conf().retention["succeeded"]
    return frozenset(queue for queue in queues if _is_nothing(own.get(queue, default)))


def _is_nothing(kept: Any) -> bool:
    try:
        return seconds_of(kept) == 0
    except ValueError:
        return False


def prune_runs(older_than: float, *, after: int = 0, page: int = PAGE) -> Page:
    """Delete, among the next ``page`` runs without a partition behind id ``after``, those that
    ended more than ``older_than`` seconds ago, but those of live and dead jobs."""
    parameters = {"after": after, "page": page, "older": min(older_than, LONGEST_KEPT)}
    deleted, last, seen = fetch(PRUNE_RUNS, parameters)[0]
    return Page(deleted=deleted, next_after=None if seen < page else last)


def prune_workflows(older_than: float, dead: float | None, page: int = PAGE) -> int:
    """Delete up to ``page`` steps of the runs of workflows that ended more than ``older_than``
    seconds ago, and the runs that have none left; return how many. A run that has some left is
    ``expired``. One with a dead step stays for ``dead`` seconds, or for ever if that is None."""
    parameters = {
        "older": min(older_than, LONGEST_KEPT),
        "dead": None if dead is None else min(max(dead, older_than), LONGEST_KEPT),
        "page": page,
        "with_runs": runs_go_with_jobs(),
    }
    ((deleted,),) = fetch(PRUNE_WORKFLOWS, parameters)
    return int(deleted)


def prune_old(statement: str, page: int = PAGE, *, older_than: float = 0.0) -> int:
    """Delete up to ``page`` rows by one of these statements; return how many. Of workers that
    ended, of ticks and of exceptions those that did or were due ``older_than`` seconds ago."""
    return execute(statement, {"older": min(older_than, LONGEST_KEPT), "page": page})


def _bounded(rule: Mapping[str, float | None]) -> dict[str, float]:
    return {
        status: keep for status, keep in rule.items() if keep is not None and keep < LONGEST_KEPT
    }
