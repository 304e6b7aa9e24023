"""Operations on runs of workflows: cancel, retry, skip a step, signal a step.

Each locks the live steps of one run, in the order of their ids, and then the run. Each run is one
transaction; the cancel of a run with more than ``PAGE`` live steps takes several.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from django.db import DataError, IntegrityError, transaction
from django.db.models import CharField, Func

from ...domain.errors import ErrorReport
from ...domain.states import PENDING, JobState
from ...domain.workflows import WorkflowState
from ...model_methods import implements
from ...models import Job, WorkflowRun
from ...models.database import execute, fetch, jobs_connection, repeat_if_moved
from ...signals import worker_event
from ..notifying import CANCELLED, notify_after_commit
from ..opening import count_ends, end_runs
from ..workflows.restarting import (
    KEY_TAKEN,
    LockedRun,
    lock_run,
    pass_over,
    restart,
    restart_problem,
)
from .jobs import (
    ASK_TO_CANCEL,
    CANCEL_PENDING,
    LOCK_JOBS,
    NEEDED,
    Actor,
    OperationResult,
    demand,
    name_of,
    not_replayable,
)
from .signals import signal as signal_job

PAGE = 2_000
"""Steps that one statement cancels."""

NO_RUN = "there is no such run"

WAITING = [JobState.WAITING.value]
OPEN = [state.value for state in (*sorted(PENDING - {JobState.WAITING}), JobState.RUNNING)]

TO_CANCEL = """
SELECT step, id FROM django_jobs_job_live
WHERE workflow_run_id = %(run)s AND (step, id) > (%(step)s, %(id)s)
  AND status = ANY(%(statuses)s::text[])
  AND NOT (status = 'running' AND cancel_requested_at IS NOT NULL)
ORDER BY step, id
LIMIT %(page)s
"""
REQUEST_CANCEL = """
UPDATE django_jobs_workflowrun SET cancel_requested_at = clock_timestamp(), reason = %(reason)s
WHERE id = %(run)s AND status = 'running' AND cancel_requested_at IS NULL
"""
ENDS_AMONG = """
SELECT count(*) FROM unnest(%(ids)s::bigint[]) AS step (id)
WHERE NOT EXISTS (
    SELECT 1 FROM django_jobs_dependency AS edge WHERE edge.parent_id = step.id OFFSET 0)
"""


def cancel(
    runs: Iterable[int], *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Cancel runs: their steps that have not begun at once, and the running ones are asked to stop.

    No step opens because of it, and nothing is undone. A run ends as cancelled with its last
    running step, which may be at once. Without an actor, ``by`` is who. Raises ``PermissionDenied``
    if ``actor`` may not.
    """
    demand(actor, "django_jobs.cancel_workflowrun")
    why = _signed("cancelled", name_of(actor) or by, reason)
    result = OperationResult()
    for run in dict.fromkeys(runs):
        status = _status_of(run)
        if status != WorkflowState.RUNNING:
            result.refused[run] = NO_RUN if status is None else f"it is {status}"
            continue
        for ids in _to_cancel(run):
            _cancel_steps(run, ids, why)
        result.done.append(run)
        if _status_of(run) == WorkflowState.RUNNING:
            result.asked.append(run)
    return result


def retry(
    runs: Iterable[int],
    *,
    check: Callable[[Job], str | None],
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> OperationResult:
    """Start the failed and the cancelled steps of runs again, and bring back what was skipped
    because of them. The other steps stay as they ended.

    ``check`` is that of :func:`~django_jobs.lifecycle.operations.jobs.replay`; a run with a step
    that it refuses stays as it is. So does one whose compensations have begun. Raises
    ``PermissionDenied`` if ``actor`` may not.
    """
    demand(actor, "django_jobs.retry_workflowrun")
    result = OperationResult()
    for run in dict.fromkeys(runs):
        problem = _retry_one(run, check, name_of(actor) or by, reason)
        if problem is None:
            result.done.append(run)
        else:
            result.refused[run] = problem
    return result


def skip(
    run: int, step: str, *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Skip a step of a run that has not begun, failed or was cancelled: those after it continue as
    if it had succeeded, without a result. What was skipped because of it comes back.

    Raises ``PermissionDenied`` if ``actor`` may not.
    """
    demand(actor, "django_jobs.skip_workflowstep")
    problem = _skip_one(run, step, _signed("skipped", name_of(actor) or by, reason))
    return (
        OperationResult(done=[run]) if problem is None else OperationResult(refused={run: problem})
    )


def signal(
    run: int,
    step: str,
    data: Any = None,
    *,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> OperationResult:
    """Send a step of a run the signal of its name, for which a ``wait`` step waits.

    Raises ``PermissionDenied`` if ``actor`` may not, and what
    :func:`~django_jobs.lifecycle.operations.signals.signal` raises.
    """
    demand(actor, "django_jobs.signal_workflowrun")
    with transaction.atomic(using=jobs_connection().alias):
        jobs = list(_steps_named(run, step).values_list("pk", flat=True))
        if len(jobs) != 1:
            return OperationResult(refused={run: _not_one(run, step, jobs)})
        refused = signal_job(jobs[0], step, data, actor=actor).refused
        if refused:
            return OperationResult(refused={run: f"step {step!r}: {refused[jobs[0]]}"})
        fields = {"run": run, "step": step, "by": name_of(actor) or by, "reason": reason}
        jobs_connection().on_commit(partial(_send_signalled, fields), robust=True)
    return OperationResult(done=[run])


def _send_signalled(fields: dict[str, Any]) -> None:
    worker_event.send_robust("step_signalled", level=logging.INFO, fields=fields)


def _to_cancel(run: int) -> Iterator[list[int]]:
    """Pages of the live steps of a run, until there are no more; an empty one at the end.

    Of many, those that wait come first, so that none of them opens meanwhile.
    """
    while True:
        page = next(_walk(run, WAITING + OPEN), [])
        if len(page) < PAGE:
            yield page
        else:
            yield from _walk(run, WAITING)
            yield from _walk(run, OPEN)
        if not page:
            return


def _walk(run: int, statuses: Sequence[str]) -> Iterator[list[int]]:
    step, id_ = "", 0
    while True:
        parameters = {"run": run, "step": step, "id": id_, "statuses": statuses, "page": PAGE}
        rows = fetch(TO_CANCEL, parameters)
        if not rows:
            return
        yield [id_ for _, id_ in rows]
        step, id_ = rows[-1]


@repeat_if_moved
def _cancel_steps(run: int, ids: list[int], why: str) -> None:
    with transaction.atomic(using=jobs_connection().alias):
        locked = [id_ for (id_,) in fetch(LOCK_JOBS, {"ids": ids})]
        cancelled = [id_ for id_, _ in fetch(CANCEL_PENDING, {"ids": locked, "reason": why})]
        if fetch(ASK_TO_CANCEL, {"ids": locked}):
            notify_after_commit(CANCELLED)
        ((ends,),) = fetch(ENDS_AMONG, {"ids": cancelled})
        execute(REQUEST_CANCEL, {"run": run, "reason": why})
        count_ends(Counter({run: ends}), {})
        if not ids:  # no step is left to cancel
            end_runs([run])


@repeat_if_moved
def _retry_one(run: int, check: Callable[[Job], str | None], by: str, reason: str) -> str | None:
    try:
        with transaction.atomic(using=jobs_connection().alias):
            if problem := _not_retried(lock_run(run)):
                return problem
            ids: list[int] = []
            for job, headers in _failed_steps(run):
                if problem := not_replayable(job, headers, check):
                    return f"step {job.step!r}: {problem}"
                ids.append(job.pk)
            return None if restart(run, ids, by, reason) else "none of its steps failed"
    except DataError as error:
        return f"PostgreSQL refuses it: {ErrorReport.of(error).summary}"
    except IntegrityError:
        return KEY_TAKEN


def _not_retried(run: LockedRun | None) -> str | None:
    if run is None:
        return NO_RUN
    if run.status == WorkflowState.SUCCEEDED:
        return "it is succeeded"
    if run.undoing is not None:
        return "its compensations have begun: start a run instead"
    return restart_problem(run, "")


def _failed_steps(run: int) -> Iterator[tuple[Job, str]]:
    """The failed and cancelled steps of a run, each with the type of its headers."""
    failed = Job.objects.using(jobs_connection().alias).filter(
        workflow_run=run, status__in=(JobState.DEAD, JobState.CANCELLED), skipped=None
    )
    kind = Func("headers", function="jsonb_typeof", output_field=CharField())
    headers = dict(failed.values_list("pk", kind))
    for job in failed.only(*NEEDED).order_by("pk"):
        yield job, headers[job.pk]


@repeat_if_moved
def _skip_one(run: int, step: str, why: str) -> str | None:
    try:
        with transaction.atomic(using=jobs_connection().alias):
            locked = lock_run(run)
            jobs = list(_steps_named(run, step).values_list("pk", "status", "skipped"))
            if locked is None or len(jobs) != 1:
                return _not_one(run, step, jobs)
            if problem := restart_problem(locked, step):
                return problem
            ((id_, status, skipped),) = jobs
            if skipped is not None:
                return f"step {step!r} was skipped"
            if not pass_over(run, id_, why):
                return f"step {step!r} is {status}"
            return None
    except IntegrityError:
        return KEY_TAKEN


def _steps_named(run: int, step: str) -> Any:
    return Job.objects.using(jobs_connection().alias).filter(workflow_run=run, step=step)


def _not_one(run: int, step: str, jobs: Sequence[Any]) -> str:
    if jobs:
        return f"{len(jobs)} of its steps are named {step!r}"
    return NO_RUN if _status_of(run) is None else f"it has no step named {step!r}"


def _status_of(run: int) -> str | None:
    rows = WorkflowRun.objects.using(jobs_connection().alias).filter(pk=run)
    return rows.values_list("status", flat=True).first()


def _signed(operation: str, by: str, reason: str) -> str:
    """``skipped by ada: not needed``."""
    done = f"{operation} by {by}" if by else operation
    return f"{done}: {reason}" if reason else done


@implements("WorkflowRun.cancel")
def _cancel_of(run: WorkflowRun, reason: str) -> bool:
    return bool(cancel([run.pk], reason=reason).done)


@implements("WorkflowRun.signal")
def _signal_of(run: WorkflowRun, step: str, data: Any) -> bool:
    return bool(signal(run.pk, step, data).done)
