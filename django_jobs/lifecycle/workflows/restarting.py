"""dead, cancelled -> waiting or ready, of the steps of workflows: those that start again, and those
that were skipped because of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from django.db import IntegrityError
from django.utils.translation import gettext_noop

from ...domain.workflows import Fate, WorkflowState
from ...models.database import ChangedMeanwhile, execute, fetch
from ..compensating import begun
from ..job_columns import AT_ITS_RUN_AT, FATE, REPLAYED
from ..notifying import notify_after_commit
from ..opening import EndedStep, Opened, open_next, skip_and_open
from ..step_insert import ASKED, EDGE_FATE, opening_at, value_for_job
from ..waits import FORGET_MISSED, FORGET_TIMEOUTS

READ_RUN = """
SELECT name, status, cancel_requested_at IS NOT NULL, compensations
FROM django_jobs_workflowrun WHERE id = %(run)s
"""
LOCK_RUN = f"""{READ_RUN}FOR NO KEY UPDATE
"""

# A step that had begun, or could, is not delayed a second time. One whose date is still ahead keeps
# it: what is left until then is its delay, which counts from the opening that follows.
DELAYED = f"""job.created_at + CASE
        WHEN job.attempt > 0 OR job.available_at <= clock.now THEN '0'
        WHEN jsonb_exists(job.headers, '{AT_ITS_RUN_AT}') THEN job.available_at - job.created_at
        ELSE job.available_at - clock.now END"""
RESTART = f"""
WITH forgotten AS ({FORGET_TIMEOUTS}), missed AS ({FORGET_MISSED})
UPDATE django_jobs_job AS job SET status = 'waiting', prerequisites = 0,
    available_at = CASE WHEN job.prerequisites > 0 THEN job.available_at ELSE {DELAYED} END,
    rank = CASE WHEN job.prerequisites > 0 THEN job.rank
                ELSE job.rank - date_part('epoch', job.available_at - ({DELAYED})) END,
    {REPLAYED}
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.workflow_run_id = %(run)s
  AND job.status IN ('dead', 'cancelled') AND job.skipped IS NULL
RETURNING job.id
"""
PUT_BACK = """
UPDATE django_jobs_job AS job
SET status = 'waiting', prerequisites = 0, finished_at = NULL, cancel_requested_at = NULL,
    force_requested_at = NULL
WHERE job.id = %(id)s AND job.status IN ('dead', 'cancelled') AND job.skipped IS NULL
RETURNING job.id
"""

# What has ended and cannot open a step, so that it stays skipped. No join, as in COUNT_DOWN.
BROKEN_EDGE = f"""
    WITH given AS MATERIALIZED (
        SELECT child_id AS child, parent_id AS parent, "when", condition
        FROM django_jobs_dependency WHERE child_id = ANY(%(ids)s::bigint[])
    ), ended AS MATERIALIZED (
        SELECT jsonb_object_agg(job.id, {FATE}) AS fates FROM django_jobs_job AS job
        WHERE job.id = ANY(ARRAY(SELECT parent FROM given))
          AND job.status IN ('succeeded', 'dead', 'cancelled')
    ), {ASKED}
    SELECT child, parent, fate FROM (
        SELECT child, parent, "when", {EDGE_FATE} AS fate FROM (
            SELECT given.*, (SELECT fates FROM ended) ->> parent::text AS fate
            FROM given OFFSET 0) AS edge OFFSET 0) AS edge
    WHERE "when" NOT IN ('finished', fate)"""
CHILDREN = """
SELECT DISTINCT child_id FROM django_jobs_dependency WHERE parent_id = ANY(%(ids)s::bigint[])
"""
# One that had begun skipped itself. As in RESTART it is not delayed a second time.
BRING_BACK = f"""
WITH broken AS MATERIALIZED ({BROKEN_EDGE})
UPDATE django_jobs_job AS job
SET status = 'waiting', prerequisites = 0, finished_at = NULL, skipped = NULL, reason = '',
    failures = 0, crashes = 0, cancel_requested_at = NULL, force_requested_at = NULL,
    available_at = CASE WHEN job.attempt > 0 THEN job.created_at ELSE job.available_at END,
    rank = job.rank - CASE WHEN job.attempt > 0
        THEN date_part('epoch', job.available_at - job.created_at) ELSE 0 END,
    expires_at = CASE WHEN job.attempt = 0 THEN job.expires_at END
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.workflow_run_id = %(run)s
  AND job.status = 'cancelled' AND job.skipped IN ('failed', 'unneeded')
  AND job.id NOT IN (SELECT child FROM broken)
RETURNING job.id
"""
BROKEN = f"""
SELECT child, CASE WHEN bool_or(fate = 'failed') THEN 'failed' ELSE 'unneeded' END,
    coalesce(min(parent) FILTER (WHERE fate = 'failed'), min(parent))
FROM ({BROKEN_EDGE}) AS broken
GROUP BY child
"""

# Steps that waited all the time had counted the ends that are undone now.
COUNT_UP = f"""
WITH again AS MATERIALIZED (
    SELECT child_id AS id, count(*) AS edges FROM django_jobs_dependency
    WHERE parent_id = ANY(%(ids)s::bigint[])
    GROUP BY child_id ORDER BY child_id
), waiting AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM again)) AND job.status = 'waiting'
      AND job.prerequisites > 0
    ORDER BY job.id
    FOR NO KEY UPDATE
)
UPDATE django_jobs_job_live AS job SET prerequisites = job.prerequisites
    + {value_for_job("ARRAY(SELECT edges FROM again)", "ARRAY(SELECT id FROM again)")}
WHERE job.id = ANY(ARRAY(SELECT id FROM waiting))
"""
PENDING = """(
    SELECT count(*) FROM django_jobs_dependency AS edge
    WHERE edge.child_id = job.id AND EXISTS (
        SELECT 1 FROM django_jobs_job_live AS parent
        WHERE parent.id = edge.parent_id AND parent.status <> 'dead' OFFSET 0))"""
COUNT_AGAIN = f"""
UPDATE django_jobs_job_live AS job SET {opening_at(PENDING)}
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(%(ids)s::bigint[])
RETURNING job.queue, job.status
"""
REOPEN = """
UPDATE django_jobs_workflowrun AS run
SET status = 'running', finished_at = NULL, cancel_requested_at = NULL,
    compensations = CASE WHEN run.compensations ? 'failed' THEN run.compensations - 'failed'
                         ELSE run.compensations END,
    reason = CASE WHEN EXISTS (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.workflow_run_id = run.id AND job.status = 'cancelled' AND job.skipped IS NULL
    ) THEN 'a step was cancelled' ELSE '' END,
    ends_left = (
        SELECT count(*) FROM django_jobs_job_live AS job
        WHERE job.workflow_run_id = run.id AND job.status <> 'dead' AND NOT EXISTS (
            SELECT 1 FROM django_jobs_dependency AS edge WHERE edge.parent_id = job.id))
WHERE run.id = %(run)s
"""
SKIP_BY_HAND = """
UPDATE django_jobs_job
SET status = 'cancelled', finished_at = clock_timestamp(), skipped = 'passed', awaits = NULL,
    reason = %(reason)s
WHERE id = %(id)s AND status IN ('waiting', 'scheduled', 'blocked', 'ready')
RETURNING id
"""

RUN_KEY = "django_jobs_workflow_key"
"""The constraint of the keys of running runs."""

KEY_TAKEN = gettext_noop("another running run holds the idempotency key of the workflow run")
JOB_KEY_TAKEN = gettext_noop("another live job holds the idempotency key of the step")


@dataclass(frozen=True, slots=True)
class SeenRun:
    """The row of a run as it was read. ``undoing`` is the id of the first of its compensations, if
    they have begun. They, and the steps that they spawn, have the ids from there on."""

    id: int
    name: str
    status: WorkflowState
    cancel_requested: bool
    undoing: int | None


def see_run(run: int, statement: str = READ_RUN) -> SeenRun | None:
    """Read the row of a run. None if there is no such run."""
    for name, status, cancel_requested, compensations in fetch(statement, {"run": run}):
        undoing = begun(compensations)
        return SeenRun(run, name, WorkflowState(status), cancel_requested, undoing)
    return None


def is_key_of_run(error: IntegrityError) -> bool:
    """Whether a run cannot start again because another one holds its key. Otherwise a live job
    holds that of a step, which was a plain job before it spawned others."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.diag.constraint_name == RUN_KEY


def key_taken(error: IntegrityError) -> str:
    """The reason why steps cannot start again."""
    return KEY_TAKEN if is_key_of_run(error) else JOB_KEY_TAKEN


def restart_problem(run: SeenRun | None, step: int) -> str | None:
    """Why the step of the run with this id cannot start again, or None."""
    if run is None:
        return gettext_noop("its workflow run does not exist")
    if run.status == WorkflowState.EXPIRED:
        return gettext_noop("the workflow run has expired, and steps of it are deleted")
    if run.status == WorkflowState.RUNNING and run.cancel_requested:
        return gettext_noop("the workflow run is being cancelled")
    if run.undoing is not None and step < run.undoing:
        return gettext_noop("the compensations of the workflow run have begun")
    return None


def restart(run: SeenRun, ids: Sequence[int], by: str, why: str) -> list[int]:
    """Start failed and cancelled steps again, and bring back what was skipped because of them.
    Return the ids of those that start again.

    One that could not run after how those before it have ended since is skipped instead. Raises
    ``IntegrityError`` if a key is held (:func:`key_taken` says whose), :class:`ChangedMeanwhile` if
    the run is not as it was seen.
    """
    parameters = {"run": run.id, "ids": list(ids), "by": by, "why": why}
    restarted = [id_ for (id_,) in fetch(RESTART, parameters)]
    if restarted:
        _open_again(run, _bring_back(run.id, restarted))
    return restarted


def pass_over(run: SeenRun, id_: int, reason: str) -> bool:
    """End a step as skipped by a person, so that those after it see a success. False if it is
    running, or has ended as anything but failed. Raises what :func:`restart` raises."""
    if fetch(PUT_BACK, {"id": id_}):
        back = _bring_back(run.id, [id_])
        _open_again(run, [other for other in back if other != id_])
    if not fetch(SKIP_BY_HAND, {"id": id_, "reason": reason}):
        return False
    _notify(open_next([EndedStep(id_, run.id, Fate.SUCCEEDED)]))
    return True


def _bring_back(run: int, ids: Sequence[int]) -> list[int]:
    """Bring back to ``waiting``, level by level, what was skipped because of these steps, which
    are waiting again. Return the ids of all."""
    back, level = list(ids), list(ids)
    while level:
        children = [id_ for (id_,) in fetch(CHILDREN, {"ids": level})]
        level = [id_ for (id_,) in fetch(BRING_BACK, {"run": run, "ids": children})]
        back += level
    execute(COUNT_UP, {"ids": back})
    return back


def _open_again(run: SeenRun, back: Sequence[int]) -> None:
    """Count what each of these steps waits for, after all are locked. With the run locked too, no
    settle that left one of them out can end before: see :mod:`~django_jobs.lifecycle.opening`."""
    if see_run(run.id, LOCK_RUN) != run:
        raise ChangedMeanwhile(f"run {run.id} of {run.name} has changed")
    broken = fetch(BROKEN, {"run": run.id, "ids": list(back)})
    unable = {child for child, _, _ in broken}
    opened = _count_again([id_ for id_ in back if id_ not in unable])
    execute(REOPEN, {"run": run.id})
    _notify(opened, skip_and_open([(child, word, parent) for child, word, parent in broken]))


def _count_again(ids: Sequence[int]) -> Opened:
    opened = Opened()
    for queue, status in fetch(COUNT_AGAIN, {"ids": list(ids)}):
        if status == "ready":
            opened.queues.add(queue)
        elif status == "blocked":
            opened.blocked.add(queue)
    return opened


def _notify(*opened: Opened) -> None:
    for hint in {hint for one in opened for hint in one.hints}:
        notify_after_commit(hint)
