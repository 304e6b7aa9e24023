"""Finds runs of workflows that could never end, or that count wrongly. A crash leaves none."""

from __future__ import annotations

from typing import Any

from ...models.database import fetch_named
from ..job_columns import FATE
from ..step_insert import STORED_RESULT, edge_fate

# The row of a step that ended succeeded or cancelled is in the history, that of a dead one with the
# live ones. A run's rows change in one transaction, so each snapshot of them must be sound.
STUCK = f"""
SELECT job.workflow_run_id AS run, job.id AS job, job.step,
    'no step before it is left, and it waits' AS problem
FROM django_jobs_job_live AS job
WHERE job.workflow_run_id IS NOT NULL AND job.status = 'waiting' AND job.awaits IS NULL
  AND NOT EXISTS (
    SELECT 1 FROM django_jobs_dependency AS edge
    JOIN django_jobs_job_live AS parent ON parent.id = edge.parent_id
    WHERE edge.child_id = job.id AND parent.status <> 'dead')
UNION ALL
SELECT job.workflow_run_id, job.id, job.step,
    'it waits after ' || min(job.before) || ', with which it cannot start'
FROM (
    SELECT child.workflow_run_id, child.id, child.step, job.step AS before, edge."when",
        edge.condition, {STORED_RESULT} AS result, {FATE} AS fate
    FROM django_jobs_job_live AS child
    JOIN django_jobs_dependency AS edge ON edge.child_id = child.id
    JOIN django_jobs_job AS job ON job.id = edge.parent_id
    WHERE child.workflow_run_id IS NOT NULL AND child.status = 'waiting'
      AND child.awaits IS NULL AND job.status IN ('succeeded', 'dead', 'cancelled')
) AS job
WHERE job."when" NOT IN ('finished', {edge_fate("job.result")})
GROUP BY job.workflow_run_id, job.id, job.step
UNION ALL
SELECT run.id, NULL, NULL, 'all its steps have ended, and it runs'
FROM django_jobs_workflowrun AS run
WHERE run.status = 'running' AND NOT EXISTS (
    SELECT 1 FROM django_jobs_job_live AS job
    WHERE job.workflow_run_id = run.id AND job.status <> 'dead')
UNION ALL
SELECT run.id, job.id, job.step, 'it has not ended, and its run has'
FROM django_jobs_job_live AS job JOIN django_jobs_workflowrun AS run ON run.id = job.workflow_run_id
WHERE job.workflow_run_id IS NOT NULL AND job.status <> 'dead' AND run.status <> 'running'
UNION ALL
SELECT job.workflow_run_id, job.id, job.step,
    'it waits for ' || job.prerequisites || ' steps, and ' || before.pending || ' have not ended'
FROM django_jobs_job_live AS job, LATERAL (
    SELECT count(*) AS pending FROM django_jobs_dependency AS edge
    JOIN django_jobs_job_live AS parent ON parent.id = edge.parent_id
    WHERE edge.child_id = job.id AND parent.status <> 'dead') AS before
WHERE job.workflow_run_id IS NOT NULL AND job.status = 'waiting' AND job.awaits IS NULL
  AND before.pending NOT IN (0, job.prerequisites)
UNION ALL
SELECT run.id, NULL, NULL,
    'it counts ' || run.ends_left || ' last steps, and ' || steps.ends || ' have not ended'
FROM django_jobs_workflowrun AS run, LATERAL (
    SELECT count(*) AS ends FROM django_jobs_job_live AS job
    WHERE job.workflow_run_id = run.id AND job.status <> 'dead' AND NOT EXISTS (
        SELECT 1 FROM django_jobs_dependency AS edge WHERE edge.parent_id = job.id)) AS steps
WHERE run.status = 'running' AND steps.ends NOT IN (0, run.ends_left)
ORDER BY 1, 2
"""


# Of a run with a million steps the server returns three.
STUCK_RUNS = f"""
SELECT run, count(*) AS count,
    (array_agg(coalesce('step ' || nullif(step, '') || ': ', '') || problem ORDER BY job))[:3]
        AS problems
FROM ({STUCK}) AS stuck
GROUP BY run
ORDER BY run
LIMIT %(most)s
"""


def stuck() -> list[dict[str, Any]]:
    """The ``run``, the ``job`` and ``step`` if it is one, and the ``problem``, of all that is stuck
    and of no other run. Reads all live steps, in one statement."""
    return fetch_named(STUCK, {})


def stuck_runs(most: int) -> list[dict[str, Any]]:
    """The first runs of which something is stuck: the ``run``, the ``count`` of its problems, and
    the first three ``problems`` in words. Reads as :func:`stuck`."""
    return fetch_named(STUCK_RUNS, {"most": most})
