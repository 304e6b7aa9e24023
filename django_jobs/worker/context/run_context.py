"""The API of a handler for its current attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from math import nan
from typing import Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.db.models import Model, QuerySet

from ...api.job_type import JobType
from ...api.steps import Step
from ...conf import conf
from ...domain.errors import text_of
from ...domain.gates import parse
from ...domain.numbers import Duration
from ...domain.payload import NotStorable, encode, key_parts
from ...exceptions import Cancelled, PayloadError
from ...logs.context import current
from ...models.database import in_transaction, jobs_connection
from . import durable
from .attempt import Attempt, StopHandler
from .durable import KEEP, Scope
from .rows import Rows
from .steps import Call, Children, Results, joined_by, spawn, spawned_by

M = TypeVar("M", bound=Model)


class RunContext:
    """The current attempt. Get it with :func:`current_run`.

    It is valid only while the handler runs. If it is used later, for example in a thread that the
    handler started, :meth:`should_stop` returns True, and what reports, makes a call or reads other
    steps raises ``RuntimeError``. Once the worker knows of a cancel of the job, what reports or
    makes a call raises :class:`Cancelled`, after what was reported is noted and before a call is
    made, unless the job type has ``on_cancel="ask"``.
    """

    __slots__ = ("_attempt", "_results", "_spawned")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._results: Results | None = None
        self._spawned: list[str] = []

    def __repr__(self) -> str:
        return f"<RunContext {self.job_type} #{self.job_id} attempt {self.attempt}>"

    @property
    def deadline(self) -> datetime | None:
        """When the time-out stops the attempt, aware, by this machine's clock. None without one."""
        return self._attempt.deadline

    @property
    def headers(self) -> Mapping[str, Any]:
        """The ``headers`` that were passed to ``using()``."""
        return self._attempt.headers

    @property
    def generation(self) -> int:
        """How many handlers, one after the other, led to this job: 0 if no handler enqueued it, and
        otherwise one more than for the job whose handler did. The same in all attempts."""
        return self._attempt.generation

    @property
    def parent_id(self) -> int | None:
        """The id of the job whose handler enqueued this one or started its workflow, if any."""
        return self._attempt.parent_id

    @property
    def traceparent(self) -> str:
        """The span of this attempt as W3C Trace Context. Empty without :doc:`traces </tracing>`."""
        return self._attempt.traceparent

    @property
    def scheduled_for(self) -> datetime | None:
        """The due time of its schedule, aware and in UTC. None if no schedule made the job."""
        return self._attempt.scheduled_for

    @property
    def job_id(self) -> int:
        """The id of the job, which is the same in all attempts."""
        return self._attempt.job.id

    @property
    def job_type(self) -> str:
        """The name of its job type, as stored in its row."""
        return self._attempt.job.job_type

    @property
    def queue(self) -> str:
        """The name of the queue from which the job was claimed."""
        return self._attempt.job.queue

    @property
    def tenant(self) -> str | None:
        """The name of the tenant of the job, or None."""
        gates = self._attempt.job.gates
        return None if gates is None else parse(gates).tenant

    @property
    def priority(self) -> int:
        return self._attempt.job.priority

    @property
    def attempt(self) -> int:
        """The number of the attempt; 1 for the first."""
        return self._attempt.job.attempt

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key of the job as it was given, or None. With ``key_scope="tenant"``,
        jobs of other :attr:`tenant` have the same."""
        key = self._attempt.job.idempotency_key
        return None if key is None else key_parts(key)[1]

    def should_stop(self) -> bool:
        """Return whether the handler should end as soon as possible: its job was cancelled, its
        lease was lost, or the worker's ``--drain-timeout`` is over. In the last case an exception
        is raised in the handler as well. Fast enough to call in a loop."""
        return self._attempt.should_stop()

    def draining(self) -> bool:
        """Return whether the worker drains. A handler whose next attempt can continue the work may
        then ``raise Snooze(0)``. Otherwise it may run on: after a signal until ``--drain-timeout``
        is over, and without a limit if an operator drains the worker or it is to be replaced. Fast
        enough to call in a loop."""
        return self._attempt.draining()

    def progress(self, fraction: float, note: Any = "") -> None:
        """Report progress: ``fraction`` is from 0 to 1, and ``note`` is text of at most 200
        characters.

        Takes a few microseconds and does not block, so it may be called from async code. The newest
        report of each job is written once a second. Raises ``ValueError`` if ``fraction`` is not a
        number from 0 to 1, and :class:`LeaseLost` after a write was refused because the attempt no
        longer belongs to this worker.
        """
        try:
            share = float(fraction)
        except (TypeError, ValueError, OverflowError):
            share = nan
        if not 0.0 <= share <= 1.0:  # false for NaN too
            raise ValueError(f"progress is a fraction from 0 to 1, not {fraction!r}")
        self._report(share, "" if note is None else note if type(note) is str else text_of(note))
        self._raise_cancel()

    def checkpoint(self, data: Any) -> None:
        """Save where the next attempt can continue, as JSON.

        Inside ``transaction.atomic()`` on the jobs' database it is written in that transaction.
        Elsewhere it is written within about a second, without blocking: call it after the effects
        that it describes are committed. Raises :class:`PayloadError` if ``data`` cannot be stored
        as JSON, :class:`LeaseLost` like :meth:`progress`, and ``ValueError`` if the handler uses
        :meth:`iterate`, which saves its own checkpoint.
        """
        if self._attempt.reporter.of(self._attempt).walked:
            raise ValueError("iterate() saves the checkpoint of this job")
        self._keep(data)
        self._raise_cancel()

    @property
    def saved_checkpoint(self) -> Any:
        """The last :meth:`checkpoint` that an earlier attempt saved, or None. It is read from the
        database at the first access; for an async handler, before the handler starts."""
        return self._attempt.reporter.saved_checkpoint(self._attempt)

    def iterate(self, queryset: QuerySet[M], key: str = "pk", chunk: int = 500) -> Rows[M]:
        """Iterate over the rows of ``queryset`` in the order of ``key``, from where the last
        attempt stopped. Works with ``for`` and ``async for``.

        A row is done when the next one is requested. Its key is then saved as the checkpoint, and
        reported as progress. Each query reads ``chunk`` rows after the last key. Between two rows
        the loop ends the attempt if the worker drains, the job was cancelled or the lease was lost;
        after a drain the next attempt continues there. Raises ``ValueError`` if the handler has
        called it before, if ``key`` is not unique, and for a queryset that is sliced or has another
        order.
        """
        rows = Rows(self, queryset, key, chunk)
        reports = self._attempt.reporter.of(self._attempt)
        if reports.walked:
            raise ValueError("a handler can call iterate() once, because a job has one checkpoint")
        reports.walked = True
        return rows

    def once(
        self, key: str, call: Callable[[], Any], *, scope: Scope = "job", keep: Duration = KEEP
    ) -> Any:
        """Call ``call`` once in all attempts of the job, and return its answer as JSON returns it.

        If an attempt has stored an answer under ``key``, that is returned without a call. The
        answer is committed at once, even if the handler's transaction is rolled back. If ``call``
        raises, the exception is raised and nothing is stored. After a crash between the call and
        the commit, the next attempt repeats the call.

        With ``scope="effect"`` the key names the effect, such as the charge of an order: the call
        is made once by all jobs of any type, and its answer is kept for ``keep``, a timedelta or
        seconds. While another attempt makes the call, this one ends as ``snoozed``.

        Raises ``ValueError`` if ``key`` is not text of 1 to 200 characters or a job that is
        delivered at most once names an effect, ``TypeError`` if ``call`` is async or cannot be
        called, and :class:`LeaseLost`, before the call, if the attempt no longer belongs to this
        worker.
        """
        self._note_call()
        seconds = durable.kept_for(self._attempt, key, scope, keep)
        return durable.once(self._attempt, key, call, seconds)

    async def aonce(
        self,
        key: str,
        call: Callable[[], Awaitable[Any]],
        *,
        scope: Scope = "job",
        keep: Duration = KEEP,
    ) -> Any:
        """:meth:`once` for async code: awaits the result of ``call``. A plain function works too,
        but blocks the event loop."""
        self._note_call()
        seconds = durable.kept_for(self._attempt, key, scope, keep)
        return await durable.aonce(self._attempt, key, call, seconds)

    def sleep(self, key: str, duration: Duration) -> None:
        """Sleep for ``duration``, a timedelta or seconds, once in all attempts of the job.

        The attempt ends as ``snoozed`` and holds no worker. When the time is over, by the
        database's clock, the next attempt calls the handler from its top, and this call returns at
        once. Raises ``ValueError`` if ``key`` is not text of 1 to 200 characters, ``duration`` is
        not a time, or the job is delivered at most once.
        """
        self._note_call()
        work = durable.sleeping(self._attempt, key, duration)
        durable.pass_sleep(durable.begin(self._attempt, work))

    async def asleep(self, key: str, duration: Duration) -> None:
        """:meth:`sleep` for async code."""
        self._note_call()
        work = durable.sleeping(self._attempt, key, duration)
        durable.pass_sleep(await durable.abegin(self._attempt, work))

    def wait_for(self, name: str, timeout: Duration | None = None) -> Any:
        """Return the data of the signal ``name``, in every attempt the same.

        If ``job.signal(name, data)`` was not called yet, the attempt ends as ``snoozed`` and holds
        no worker. The signal makes the job ready, and the next attempt calls the handler from its
        top. So does the end of ``timeout`` (a timedelta or seconds from the first attempt that came
        here); this call then raises :class:`SignalTimeout`, in later attempts too. Raises
        ``ValueError`` as :meth:`sleep` does.
        """
        self._note_call()
        work = durable.waiting(self._attempt, name, timeout)
        return durable.pass_wait(name, durable.begin(self._attempt, work))

    async def await_for(self, name: str, timeout: Duration | None = None) -> Any:
        """:meth:`wait_for` for async code."""
        self._note_call()
        work = durable.waiting(self._attempt, name, timeout)
        return durable.pass_wait(name, await durable.abegin(self._attempt, work))

    @property
    def results(self) -> Results:
        """The results of the steps upstream, by their names: ``run.results["reserve_stock"]``. Each
        is read when it is first asked for, and is None if the step did not succeed. Raises
        ``KeyError`` for an unknown step, with the names of those that there are, and for one that
        has not ended. In an async handler: ``await run.results.aget("reserve_stock")``."""
        if self._results is None:
            self._results = Results(self._attempt)
        return self._results

    def children(self) -> Children:
        """The steps of the fan-out that this step joins, in their order: an iterable, for ``for``
        and ``async for``, of tuples ``(id, step, status, result)``. After :meth:`spawn`, those that
        this handler has spawned.

        They are read in pages of at most 1,000 and 32 MB. ``result`` is None if the step did not
        succeed. A step that spawned others is left out, because those stand for it.
        """
        if self._spawned:
            return spawned_by(self._attempt, self._spawned)
        return joined_by(self._attempt)

    def spawn(
        self,
        job_type: JobType[..., Any],
        payloads: Iterable[Mapping[str, Any]],
        then: JobType[..., Any] | Step | None = None,
        *,
        key: str | None = None,
        when: str = "succeeded",
    ) -> None:
        """Make a job for each payload, as steps of this job's run; then one of ``then``.

        The children are written in batches of 5,000, or of 32 MB of payloads, and start as each
        batch is committed. If the
        attempt fails, the next one continues: give the same payloads in the same order. ``then`` (a
        job type, or ``publish.step(...)``) starts when this job and all children succeeded; with
        ``when="finished"``, when the children ended. What waits for this step in its workflow
        waits for ``then`` too, or else for the children. ``key`` names the spawn and its children;
        default: the handler's name, with a number from the second call on.

        Raises what :meth:`JobType.enqueue_many` raises, :class:`EnqueueError` inside a transaction
        and for a key that an earlier call of this handler had, and :class:`LeaseLost`.
        """
        self._note_call()
        call = Call(job_type, payloads, then, key, when)
        key = spawn(self._attempt, call, self._spawned, self._between_batches)
        self._spawned.append(key)

    async def aspawn(
        self,
        job_type: JobType[..., Any],
        payloads: Iterable[Mapping[str, Any]],
        then: JobType[..., Any] | Step | None = None,
        *,
        key: str | None = None,
        when: str = "succeeded",
    ) -> None:
        """:meth:`spawn` for async code."""
        await sync_to_async(self.spawn)(job_type, payloads, then, key=key, when=when)

    def _between_batches(self) -> None:
        self._note_progress()
        if self._has_to_stop():
            self._stop_handler()

    def _has_to_stop(self) -> bool:
        """Whether a handler that can continue in the next attempt should stop now."""
        return self._attempt.has_to_stop() or (
            self.draining()
            and not (self._attempt.job.at_most_once or in_transaction(jobs_connection()))
        )

    def _stop_handler(self) -> NoReturn:
        self._attempt.reporter.confirm(self._attempt)
        self._raise_cancel()
        if self.draining():
            raise StopHandler
        raise Cancelled

    def _raise_cancel(self) -> None:
        if self._attempt.raises_cancel():
            raise Cancelled

    def _note_call(self) -> None:
        """Note that the handler makes a call, which it does not once it is cancelled."""
        self._note_progress()
        self._raise_cancel()

    def _report(self, share: float, note: str) -> None:
        self._note_progress()
        self._attempt.reporter.progress(self._attempt, share, note)

    def _note_progress(self) -> None:
        """Reset the silence: the handler has reported something."""
        self._attempt.reporter.of(self._attempt)
        self._attempt.on_progress()

    def _keep(self, data: Any, *, at_once: bool = False) -> None:
        most = conf().max_payload_bytes
        try:
            if conf().storage is None:
                text = encode(data, max_bytes=most, name="checkpoint")
            else:
                from ...lifecycle.stored_files import encoded_of

                text = encoded_of(
                    self.job_id, data, max_bytes=most, name="checkpoint", is_checkpoint=True
                )
        except NotStorable as error:
            raise PayloadError(f"{self.job_type}: {error}") from None
        self._note_progress()
        self._attempt.reporter.checkpoint(self._attempt, text, at_once=at_once)

    def _begin_again(self) -> None:
        """Forget the previous call of the handler, whose transaction was rolled back."""
        self._attempt.reporter.of(self._attempt).walked = False


def running_attempt() -> Attempt | None:
    """The attempt of the calling handler; None outside a worker."""
    run = current.get()
    return None if run is None else run._attempt


def current_run() -> RunContext | None:
    """Return the :class:`RunContext` of the calling handler; None outside a worker."""
    return current.get()
