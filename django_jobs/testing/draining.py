"""Runs jobs in the process and the transaction of a test: those that are ready, or each where it is
enqueued."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from ..api.job_type import JobType
from ..api.validation import known_queue
from ..conf import conf
from ..domain.states import FAILURES
from ..exceptions import Cancelled
from ..lifecycle import notifying
from ..lifecycle.job_columns import ClaimedJob
from ..lifecycle.notifying import read_blocked
from ..lifecycle.schedules.due import start_next_waiting
from ..lifecycle.settling import Settled
from ..models import Job, Run, WorkflowRun
from ..models.database import is_of_a_test
from ..worker.context.attempt import StopHandler, Suspended
from .crash_points import ProcessDied
from .crashing import AnyJobType, names_of
from .inline_worker import Ended, InlineWorker, is_at_work
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


@contextmanager
def immediate(*, check: bool = False) -> Iterator[None]:
    """In the block, run jobs as soon as they are ready: those that are enqueued, opened by others,
    or signalled, and what is ready already in their queues.

    A job starts when the transaction that made it ready is committed; in a ``TestCase``, at the end
    of the outermost ``atomic`` block that is not the test's, or at once if there is none or it has
    no savepoint. Its payload and its result pass through the database as always. A failure does not
    raise in the caller, unless ``check`` is set: then :class:`JobFailed` is raised. The retry
    waits, as do other jobs that are due later.

    Jobs that a handler makes ready run after it.
    """
    before, notifying.run_at_once = notifying.run_at_once, AtOnce(check=check)
    try:
        yield
    finally:
        notifying.run_at_once = before


class AtOnce:
    """Takes the place of the workers: runs the jobs of the queues that it is notified of."""

    def __init__(self, *, check: bool = False, of_the_setting: bool = False) -> None:
        self.of_the_setting = of_the_setting
        """Whether it ends with the setting, and not with a block."""
        self._check = check
        self._noted = threading.local()

    def __call__(self, hint: str, connection: Any) -> None:
        """A queue has jobs once the transaction of this connection is committed."""
        queue, _ = read_blocked(hint) or (hint, None)
        if queue.startswith(":"):  # it is for workers only
            return
        self._queues[queue] = None
        if is_at_work():
            return  # the attempt that is under way comes first
        if not (connection.atomic_blocks and connection.atomic_blocks[0]._from_testcase):
            connection.on_commit(self._run)
        elif _has_an_end(connection):
            _call_at_the_end(connection, self._run)
        else:
            self._run()

    @property
    def _queues(self) -> dict[str, None]:
        """The queues to look at in this thread, in order."""
        if not hasattr(self._noted, "queues"):
            self._noted.queues = {}
        queues: dict[str, None] = self._noted.queues
        return queues

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Jobs that would run in the block run at its end."""
        self._noted.is_held, self._noted.is_due = True, False
        try:
            yield
        finally:
            self._noted.is_held = False
        if self._noted.is_due:
            self._run()

    def _run(self) -> None:
        if getattr(self._noted, "is_held", False):
            self._noted.is_due = True
            return
        while self._queues and not is_at_work():
            queue = next(iter(self._queues))
            del self._queues[queue]
            run_jobs(queue, check=self._check)


def _has_an_end(connection: Any) -> bool:
    """Whether the outermost block inside the transaction of the test, if there is one, has a
    savepoint. Without it, as in ``QuerySet.delete()``, Django calls nothing when it ends."""
    blocks_of_the_test = sum(block._from_testcase for block in connection.atomic_blocks)
    savepoints = connection.savepoint_ids[blocks_of_the_test - 1 :]
    return bool(savepoints) and savepoints[0] is not None


def _call_at_the_end(connection: Any, run: Any) -> None:
    """Call ``run`` when the outermost block inside the transaction of the test has ended well.
    Django calls nothing then, because it is a savepoint for it."""

    def has_ended() -> bool:
        if not is_of_a_test(connection):
            return False
        del connection.savepoint_commit, connection.savepoint_rollback
        return True

    def commit(savepoint: str) -> None:
        type(connection).savepoint_commit(connection, savepoint)
        if has_ended():
            run()

    def roll_back(savepoint: str) -> None:
        # Django commits the savepoint after it has rolled back to it.
        has_ended()
        type(connection).savepoint_rollback(connection, savepoint)

    if "savepoint_commit" not in vars(connection):
        connection.savepoint_commit, connection.savepoint_rollback = commit, roll_back
