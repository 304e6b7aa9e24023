"""dead -> cancelled: what nobody will replay."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from ...models import Job
from ...models.database import fetch, jobs_connection, repeat_conflicts
from ..scope import limited
from .jobs import LOCK_JOBS, Actor, OperationResult, demand, done_by, result_of

# The job moves to the history of the day on which it was dismissed, and is kept from then on as
# long as other cancelled jobs. Its runs stay as they are.
DISMISS = """
UPDATE django_jobs_job AS job SET status = 'cancelled', finished_at = clock.now,
    reason = %(reason)s || ' (it was dead: ' || job.reason || ')'
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'dead' AND job.workflow_run_id IS NULL
RETURNING job.id
"""
A_STEP = "it is a step of a workflow; retry or cancel the run, or skip the step"


@limited
def dismiss(
    ids: Iterable[int], *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Cancel dead jobs that nobody will replay. Their errors and runs are kept as long as those of
    other cancelled jobs. A step of a workflow is refused. Without an actor, ``by`` is who.

    Raises ``PermissionDenied`` if ``actor`` may not.
    """
    demand(actor, "django_jobs.dismiss_job")
    who = f"dismissed by {by}" if by else done_by("dismissed", actor)
    return _dismiss(list(ids), f"{who}: {reason}" if reason else who)


@repeat_conflicts
def _dismiss(wanted: list[int], why: str) -> OperationResult:
    with transaction.atomic(using=jobs_connection().alias):
        fetch(LOCK_JOBS, {"ids": wanted})
        done = [id_ for (id_,) in fetch(DISMISS, {"ids": wanted, "reason": why})]
        result = result_of(wanted, done)
    steps = Job.objects.using(jobs_connection().alias).dead().filter(pk__in=result.refused)
    result.refused |= dict.fromkeys(steps.values_list("pk", flat=True), A_STEP)
    return result
