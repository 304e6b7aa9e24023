"""dead -> cancelled: what nobody will replay."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.utils.translation import gettext_noop

from ...domain.bulk import LARGEST_ID
from ...models import Job
from ...models.database import execute, fetch, jobs_connection, repeat_conflicts
from ..compensating import HAS_NOT_UNDONE
from ..scope import limited
from . import OperationResult
from .jobs import LOCK_JOBS, Actor, demand, name_of, result_of, signed

# A run that is retried meanwhile counts its steps under this lock: jobs before runs, as in
# ``lifecycle.opening``.
LOCK_RUNS = """
SELECT run.id FROM django_jobs_workflowrun AS run
WHERE run.id = ANY(ARRAY(
    SELECT job.workflow_run_id FROM django_jobs_job_live AS job
    WHERE job.id = ANY(%(ids)s::bigint[]) AND job.workflow_run_id IS NOT NULL))
ORDER BY run.id
FOR NO KEY UPDATE
"""
# The job moves to the history of the day on which it was dismissed, and is kept from then on as
# long as other cancelled jobs, a step as long as its run. Its runs stay as they are. For the steps
# after it nothing changes: a dead step and a cancelled one have both failed. A compensation has no
# steps after it that could tell: it is skipped, so that it has not failed.
DISMISS = """
UPDATE django_jobs_job AS job SET status = 'cancelled', finished_at = clock.now,
    skipped = CASE WHEN EXISTS (
        SELECT FROM django_jobs_workflowrun AS run
        WHERE run.id = job.workflow_run_id AND job.id >= (run.compensations ->> 'begun')::bigint
        OFFSET 0) THEN 'passed' END,
    reason = %(reason)s || ' (it was dead: ' || job.reason || ')'
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'dead' AND NOT EXISTS (
    SELECT FROM django_jobs_workflowrun AS run
    WHERE run.id = job.workflow_run_id AND run.status = 'running' OFFSET 0)
RETURNING job.id
"""
# Before the dismissal, when the steps are still with the live jobs.
FORGET_FAILED = f"""
UPDATE django_jobs_workflowrun AS run
SET compensations = CASE WHEN others.failed = '[]' THEN run.compensations - 'failed'
                         ELSE jsonb_set(run.compensations, ARRAY['failed'], others.failed) END
FROM (
    SELECT run.id, to_jsonb(ARRAY(
        SELECT job.step FROM django_jobs_job AS job
        WHERE job.workflow_run_id = run.id AND {HAS_NOT_UNDONE}
          AND NOT (job.status = 'dead' AND job.id = ANY(%(ids)s::bigint[]))
        ORDER BY job.id)) AS failed
    FROM django_jobs_workflowrun AS run
    WHERE run.id = ANY(ARRAY(
        SELECT job.workflow_run_id FROM django_jobs_job_live AS job
        WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'dead'))
      AND run.status <> 'running' AND run.compensations ? 'failed'
    OFFSET 0
) AS others
WHERE run.id = others.id
"""
UNENDED_RUN = gettext_noop(
    "its workflow run has not ended; retry or cancel the run, or skip the step"
)


@limited
def dismiss(
    ids: Iterable[int], *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Cancel dead jobs that nobody will replay. Their errors and runs are kept as long as those of
    other cancelled jobs. A step whose workflow run has not ended is refused; a retry of the run
    starts a dismissed one again. A failed compensation counts as skipped."""
    demand(actor, "django_jobs.dismiss_job", reason)
    return _dismiss(list(ids), signed("dismissed", by or name_of(actor), reason))


@repeat_conflicts
def _dismiss(wanted: list[int], why: str) -> OperationResult:
    possible = [id_ for id_ in wanted if abs(id_) <= LARGEST_ID]  # a person typed them
    with transaction.atomic(using=jobs_connection().alias):
        fetch(LOCK_JOBS, {"ids": possible})
        if fetch(LOCK_RUNS, {"ids": possible}):
            execute(FORGET_FAILED, {"ids": possible})
        done = [id_ for (id_,) in fetch(DISMISS, {"ids": possible, "reason": why})]
        result = result_of(wanted, done)
    steps = Job.objects.using(jobs_connection().alias).dead().filter(pk__in=result.refused)
    result.refused |= dict.fromkeys(steps.values_list("pk", flat=True), UNENDED_RUN)
    return result
