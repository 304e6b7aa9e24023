"""Operations on runs of workflows: cancel, retry, skip a step, signal a step.

Each locks the steps that it changes, and then the run: see :mod:`~django_jobs.lifecycle.opening`.
Each run is one transaction; the cancel of a run with more than ``PAGE`` live steps takes several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.db import DataError, IntegrityError, transaction
from django.db.models import CharField, Func, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext_noop

from ...domain.errors import ErrorReport
from ...domain.states import FINAL, LIVE, PENDING, JobState
from ...domain.workflows import WAIT, WorkflowState
from ...exceptions import OperationRefused
from ...models import Job, WorkflowRun
from ...models.database import execute, fetch, jobs_connection, repeat_conflicts
from ..opening import count_ends
from ..workflows.restarting import SeenRun, key_taken, pass_over, restart, restart_problem, see_run
from . import OperationResult
from .jobs import LOCK_JOBS, NEEDED, Actor, demand, name_of, not_replayable, signed
from .signals import demand_of_step
from .signals import signal as signal_job

PAGE = 2_000
"""Steps that one statement cancels."""

MOST_NAMED = 10
"""Steps that the refusal of a signal names."""

CANCEL_SECONDS = 10.0
"""After so long the cancel of a run may have been cut short."""

MOST_TRIED = 100
"""Runs that maintenance tries, until it finds one that no other session has locked."""

NO_RUN = gettext_noop("there is no such run")

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
UNFINISHED_CANCELS = """
SELECT run.id, run.reason FROM django_jobs_workflowrun AS run
WHERE run.status = 'running' AND run.cancel_requested_at IS NOT NULL
  AND run.cancel_requested_at < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND EXISTS (
      SELECT 1 FROM django_jobs_job_live AS job
      WHERE job.workflow_run_id = run.id AND job.status <> 'dead'
        AND NOT (job.status = 'running' AND job.cancel_requested_at IS NOT NULL))
ORDER BY run.id
LIMIT %(most)s
"""
ANY_CANCEL = """EXISTS (
    SELECT FROM django_jobs_workflowrun
    WHERE status = 'running' AND cancel_requested_at IS NOT NULL)"""
# Unless its last step has ended since: what undoes the others is not cancelled.
LOCK_CANCELLED_RUN = """
SELECT id FROM django_jobs_workflowrun
WHERE id = %(run)s AND status = 'running' AND cancel_requested_at IS NOT NULL
FOR NO KEY UPDATE SKIP LOCKED
"""
# Of one that stops because a step is dead too: then it ends as cancelled, and undoes nothing.
REQUEST_CANCEL = """
UPDATE django_jobs_workflowrun
SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
    reason = CASE WHEN cancel_requested_at IS NULL OR on_failure = 'stopping' THEN %(reason)s
                  ELSE reason END,
    on_failure = CASE on_failure WHEN 'stopping' THEN 'cancel' ELSE on_failure END
WHERE id = %(run)s AND status = 'running'
"""


def cancel(
    runs: Iterable[int], *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Cancel runs: their steps that have not begun at once, and the running ones are asked to stop.

    No step opens because of it, and nothing is undone. A run ends as cancelled with its last
    running step, which may be at once. If it is cut short, maintenance finishes it.
    """
    demand(actor, "django_jobs.cancel_workflowrun", reason)
    why = signed("cancelled", name_of(actor) or by, reason)
    result = OperationResult()
    for run in dict.fromkeys(runs):
        status = _status_of(run)
        if status != WorkflowState.RUNNING:
            result.refused[run] = NO_RUN if status is None else f"it is {status}"
            continue
        requested = False
        for ids in _to_cancel(run):
            requested |= _cancel_steps(run, ids, why)
        status = _status_of(run)
        if not requested:
            result.refused[run] = f"it is {status}"
            continue
        result.done.append(run)
        if status == WorkflowState.RUNNING:
            result.asked.append(run)
    return result


def finish_cancel() -> int:
    """Cancel a page of the steps of a run whose cancel was cut short; return how many there were.
    Steps that were added since the cancel are found too. What another session has locked is left
    to the next call, so that no other run waits for it."""
    for run, why in fetch(UNFINISHED_CANCELS, {"seconds": CANCEL_SECONDS, "most": MOST_TRIED}):
        if cancelled := _cancel_free_steps(run, next(_to_cancel(run)), why):
            return cancelled
    return 0


def retry(
    runs: Iterable[int],
    *,
    check: Callable[[Job], str | None],
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> OperationResult:
    """Start the failed and the cancelled steps of runs again, and bring back what was skipped
    because of them. The other steps stay as they ended. Once the compensations of a run have begun,
    only those of them start again.

    ``check`` is that of :func:`~django_jobs.lifecycle.operations.jobs.replay`; a run with a step
    that it refuses stays as it is.
    """
    demand(actor, "django_jobs.retry_workflowrun", reason)
    result = OperationResult()
    for run in dict.fromkeys(runs):
        problem = _retry_one(run, check, name_of(actor) or by, reason)
        if problem is None:
            result.done.append(run)
        else:
            result.refused[run] = problem
    return result


def skip(
    run: int, step: str | int, *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Skip a step of a run that has not begun, failed or was cancelled: those after it continue as
    if it had succeeded, without a result. What was skipped because of it comes back. ``step`` is
    its name, or the id of its job: steps that were spawned may share a name. A ``wait`` step can
    demand a permission besides, as for its signal."""
    demand(actor, "django_jobs.skip_workflowstep", reason)
    problem = _skip_one(run, step, signed("skipped", name_of(actor) or by, reason), actor)
    return (
        OperationResult(done=[run]) if problem is None else OperationResult(refused={run: problem})
    )


def signal(
    run: int,
    step: str,
    data: Any = None,
    *,
    name: str | None = None,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> OperationResult:
    """Send a step of a run the signal ``name``: by default that for which the step waits, and to a
    ``wait`` step that of its own name, also before it waits.

    Raises :class:`OperationRefused` if the run has no such step, or the step waits for no signal
    and no ``name`` is given, and what :func:`~django_jobs.lifecycle.operations.signals.signal`
    raises.
    """
    demand(actor, "django_jobs.signal_workflowrun", reason)
    with transaction.atomic(using=jobs_connection().alias):
        columns = "pk", "job_type", "awaits", "status", "signals"
        jobs = list(_steps_named(run, step).values_list(*columns))
        if len(jobs) != 1:
            problem = _not_one(run, step, jobs)
            if problem == NO_RUN:
                return OperationResult(refused={run: problem})
            raise OperationRefused(f"workflow run {run}: {problem}; {_signallable(run)}")
        ((id_, job_type, awaits, status, signals),) = jobs
        name = name or awaits or (step if job_type == WAIT or status in FINAL else None)
        if name is None:
            problem = f"step {step!r} waits for no signal now"
            if signals:  # it has just had one
                return OperationResult(refused={run: problem})
            raise OperationRefused(
                f"workflow run {run}: {problem}, and a handler that is to wait for one needs its "
                f"name; {_signallable(run)}"
            )
        refused = signal_job(id_, name, data, actor=actor, by=by, reason=reason).refused
        if refused:
            return OperationResult(refused={run: f"step {step!r}: {refused[id_]}"})
    return OperationResult(done=[run])


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


@repeat_conflicts
def _cancel_steps(run: int, ids: list[int], why: str) -> bool:
    """Cancel some steps of a run, and the run with them. False if it has ended."""
    from ..cancelling import cancel_steps

    with transaction.atomic(using=jobs_connection().alias):
        locked = [id_ for (id_,) in fetch(LOCK_JOBS, {"ids": ids})]
        ends = cancel_steps(locked, why)
        requested = execute(REQUEST_CANCEL, {"run": run, "reason": why}) > 0
        count_ends({run: ends}, look=not ids)  # no step is left to cancel
    return requested


@repeat_conflicts
def _cancel_free_steps(run: int, ids: list[int], why: str) -> int:
    """The same without waiting for a lock; returns how many of the steps were free."""
    from ..cancelling import cancel_steps

    with transaction.atomic(using=jobs_connection().alias):
        locked = [id_ for (id_,) in fetch(f"{LOCK_JOBS} SKIP LOCKED", {"ids": ids})]
        if (ids and not locked) or not fetch(LOCK_CANCELLED_RUN, {"run": run}):
            return 0
        count_ends({run: cancel_steps(locked, why)}, look=not ids)
        return len(locked)


@repeat_conflicts
def _retry_one(run: int, check: Callable[[Job], str | None], by: str, reason: str) -> str | None:
    try:
        with transaction.atomic(using=jobs_connection().alias):
            seen = see_run(run)
            if seen is None:
                return NO_RUN
            if problem := retry_problem(seen):
                return problem
            ids: list[int] = []
            for job, headers in _read(_failed_steps(seen)):
                if problem := not_replayable(job, headers, check):
                    return f"step {job.step!r}: {problem}"
                ids.append(job.pk)
            return (
                None if restart(seen, ids, by, reason) else gettext_noop("none of its steps failed")
            )
    except DataError as error:
        return f"PostgreSQL refuses it: {ErrorReport.of(error).summary}"
    except IntegrityError as error:
        return key_taken(error)


def retry_problem(run: SeenRun) -> str | None:
    if run.status == WorkflowState.SUCCEEDED:
        return "it is succeeded"
    if run.undoing is not None and not _failed_steps(run).exists():
        return gettext_noop("its compensations have begun: start a run instead")
    return restart_problem(run, run.undoing or 0)


def _failed_steps(run: SeenRun) -> QuerySet[Job]:
    """The failed and cancelled steps of a run that a retry starts again."""
    steps = Job.objects.using(jobs_connection().alias).filter(workflow_run=run.id)
    if run.undoing is not None:
        steps = steps.filter(pk__gte=run.undoing)
    return steps.filter(status__in=(JobState.DEAD, JobState.CANCELLED), skipped=None)


def _read(failed: QuerySet[Job]) -> Iterator[tuple[Job, str]]:
    """These steps, each with the type of its headers, in one statement. A payload that cannot be
    decoded is not set, so that ``check`` sees why when it reads it."""
    kind = Func("headers", function="jsonb_typeof", output_field=CharField())
    rows: Any = failed.annotate(kind=kind, text=Cast("payload", TextField()))
    for job in rows.only(*NEEDED).order_by("pk"):
        with suppress(ValueError, RecursionError):
            job.payload = json.loads(job.text)
        yield job, job.kind


@repeat_conflicts
def _skip_one(run: int, step: str | int, why: str, actor: Actor) -> str | None:
    try:
        with transaction.atomic(using=jobs_connection().alias):
            seen = see_run(run)
            jobs = list(_steps_named(run, step).values_list("pk", "step", "skipped"))
            if seen is None or len(jobs) != 1:
                return _not_one(run, step, jobs)
            ((id_, name, skipped),) = jobs
            demand_of_step(actor, id_)
            if problem := restart_problem(seen, id_):
                return problem
            if skipped is not None:
                return f"step {name!r} was skipped"
            if not pass_over(seen, id_, why):
                (status,) = _steps_named(run, id_).values_list("status", flat=True)
                return f"step {name!r} is {status}"
            return None
    except IntegrityError as error:
        return key_taken(error)


def _steps_named(run: int, step: str | int) -> Any:
    """The steps of a run with this name, or the one with this id."""
    steps = Job.objects.using(jobs_connection().alias).filter(workflow_run=run)
    return steps.filter(pk=step) if isinstance(step, int) else steps.filter(step=step)


def _not_one(run: int, step: str | int, jobs: Sequence[Any]) -> str:
    if jobs:
        return f"{len(jobs)} of its steps are named {step!r}"
    if _status_of(run) is None:
        return NO_RUN
    return f"it has no step {step if isinstance(step, int) else f'named {step!r}'}"


def _signallable(run: int) -> str:
    """The steps that can be signalled by their names alone, in words."""
    live = Job.objects.using(jobs_connection().alias).filter(workflow_run=run, status__in=LIVE)
    waiting = live.filter(Q(job_type=WAIT) | Q(awaits__isnull=False)).order_by("pk")
    steps = [str(name) for (name,) in waiting.values_list("step")[:MOST_NAMED]]
    return f"these wait for one: {', '.join(steps)}" if steps else "none of its steps waits for one"


def _status_of(run: int) -> str | None:
    rows = WorkflowRun.objects.using(jobs_connection().alias).filter(pk=run)
    return rows.values_list("status", flat=True).first()
