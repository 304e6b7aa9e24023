"""Runs the jobs that are ready, in the process and the transaction of a test."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction

from asgiref.sync import sync_to_async
from django.db import transaction

from ..api.job_type import JobType
from ..api.validation import known_queue
from ..conf import conf
from ..domain.states import FAILURES
from ..exceptions import Cancelled
from ..lifecycle.job_columns import ClaimedJob
from ..lifecycle.schedules.due import start_next_waiting
from ..lifecycle.settling import Settled
from ..models import Job, Run, WorkflowRun
from ..worker.context.attempt import StopHandler, Suspended
from .crash_points import ProcessDied
from .crashing import AnyJobType, names_of
from .inline_worker import Ended, InlineWorker
from .travelling import Journey

MOST_ATTEMPTS = 10_000
"""Attempts of one call, because a job that enqueues itself would never let it return."""


OF_HANDLERS = (
    *(Exception, SystemExit, Cancelled, CancelledError, StopHandler, Suspended, ProcessDied),
)
"""What ends the attempt in which it is raised. Anything else is for the test: a key that was
pressed, or what ``pytest.fail()`` raises in a mock."""

Until = Callable[[], object] | Job | WorkflowRun | datetime | timedelta


class JobFailed(AssertionError):
    """An attempt failed in ``run_jobs(check=True)``. ``run`` is its row."""

    def __init__(self, run: Run) -> None:
        self.run = run
        what = f"{run.job.job_type} #{run.job_id} attempt {run.attempt} {run.outcome}"
        super().__init__(f"{what}: {run.error_type}: {run.error_message}\n\n{run.traceback}")


def run_jobs(
    queue: str | None = None,
    job_type: AnyJobType | None = None,
    until: Until | None = None,
    *,
    check: bool = False,
) -> list[Run]:
    """Run the jobs that are ready, and those that they make ready, one after the other in this
    thread. Return the runs of their attempts, in order.

    Jobs are claimed, run and settled by the code and the statements of a worker. ``queue`` and
    ``job_type`` restrict which are run. With ``until`` no further job is started once it returns
    something true, or the job or the run of a workflow that it is has ended. Jobs that are due
    later stay scheduled: see :func:`travel`. If ``until`` is a datetime or a timedelta, time passes
    from one due time to the next, up to then, and they run each at its time.

    An attempt that fails does not raise: its run says so. With ``check`` it raises
    :class:`JobFailed`, after it was settled.
    """
    if queue is not None:
        if not isinstance(queue, str):
            raise TypeError(f"run_jobs(): queue is the name of one, not {queue!r}; use job_type=")
        known_queue(queue, "run_jobs()")
    names = None if job_type is None else names_of(job_type)
    journey = Journey(until) if isinstance(until, datetime | timedelta) else None
    is_over = _end_of(until)
    ended: list[Ended] = []
    with closing(InlineWorker(queue)) as worker:
        for job in _jobs(worker, names, is_over, journey):
            ended.append(worker.run(job))
            error = ended[-1].error
            if error is not None and not isinstance(error, OF_HANDLERS):
                raise error
            if check and (run := _runs(ended[-1:])[0]).outcome in FAILURES:
                raise JobFailed(run) from error
            if len(ended) >= MOST_ATTEMPTS:
                raise RuntimeError(
                    f"run_jobs() has made {MOST_ATTEMPTS:,} attempts, and jobs are still ready; "
                    f"the last one was of {job.job_type}"
                )
    return _runs(ended)


@sync_to_async
def arun_jobs(
    queue: str | None = None,
    job_type: AnyJobType | None = None,
    until: Until | None = None,
    *,
    check: bool = False,
) -> list[Run]:
    """:func:`run_jobs` for async tests."""
    return run_jobs(queue, job_type, until, check=check)


def _end_of(until: Until | None) -> Callable[[], object]:
    if until is None or isinstance(until, datetime | timedelta):
        return lambda: False
    if isinstance(until, Job | WorkflowRun):
        return lambda: _has_ended(until)
    if isinstance(until, JobType) or iscoroutinefunction(until) or not callable(until):
        raise TypeError(
            "run_jobs(): until is a plain function without arguments, a job, a run of a workflow, "
            f"a timedelta or a datetime, not {until!r}"
        )
    return until


def _has_ended(row: Job | WorkflowRun) -> bool:
    finished = type(row)._default_manager.using(conf().database).filter(pk=row.pk)
    return not finished.filter(finished_at=None).exists()


def _jobs(
    worker: InlineWorker,
    names: Collection[str] | None,
    is_over: Callable[[], object],
    journey: Journey | None,
) -> Iterator[ClaimedJob]:
    while not is_over():
        with transaction.atomic(using=conf().database):
            start_next_waiting()
        worker.make_ready()
        job = worker.claim(names)
        if job is not None:
            yield job
        elif journey is None or not journey.go_on():
            return


def _runs(ended: list[Ended]) -> list[Run]:
    rows = Run.objects.using(conf().database).filter(job__in={one.job.id for one in ended})
    known = {(run.job_id, run.attempt): run for run in rows.select_related("job")}
    return [
        known.get((one.job.id, one.job.attempt)) or _unkept(one.job, one.settled) for one in ended
    ]


def _unkept(job: ClaimedJob, settled: Settled | None) -> Run:
    """The run of a job whose retention keeps no row of it."""
    run = Run(job_id=job.id, attempt=job.attempt, worker_id=job.worker)
    run.available_at = datetime.fromtimestamp(job.available_at, UTC)
    run.claimed_at = datetime.fromtimestamp(job.claimed_at, UTC)
    if settled is not None and settled.decision is not None:
        run.outcome = settled.decision.run
        ending = settled.ending
        run.finished_at = run.claimed_at + timedelta(seconds=ending.finished - job.taken_at)
        if ending.started is not None:
            run.started_at = run.finished_at - timedelta(seconds=ending.finished - ending.started)
    return run
