"""What a handler can ask about the run it is in, and tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from math import nan
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from ...conf import conf
from ...domain.errors import text_of
from ...domain.payload import NotStorable, encode
from ...exceptions import PayloadError
from ...models.database import jobs_connection
from . import once
from .attempt import Attempt
from .progress import in_transaction
from .rows import Rows

M = TypeVar("M", bound=Model)


class RunContext:
    """The attempt that is being made. Get it with :func:`current_run`.

    It is of use while the handler runs. One that is kept for longer, as by a thread, raises
    ``RuntimeError`` where it is to report or to make a call, and :meth:`should_stop` is true.
    """

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __repr__(self) -> str:
        return f"<RunContext {self.job_type} #{self.job_id} attempt {self.attempt}>"

    @property
    def deadline(self) -> datetime | None:
        """When the attempt will be stopped for its time-out; None without one. Aware, and of this
        machine's clock."""
        return self._attempt.deadline

    @property
    def headers(self) -> Mapping[str, Any]:
        """What was given to ``enqueue`` as ``headers``."""
        return self._attempt.headers

    @property
    def scheduled_for(self) -> datetime | None:
        """The due time of its schedule, aware and in UTC; None for a job that no schedule made."""
        return self._attempt.scheduled_for

    @property
    def job_id(self) -> int:
        """The job's number. The same in all of its attempts."""
        return self._attempt.job.id

    @property
    def job_type(self) -> str:
        """The name of its job type, as on its row."""
        return self._attempt.job.job_type

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._attempt.job.queue

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._attempt.job.attempt

    @property
    def idempotency_key(self) -> str | None:
        """The key of the request, or None."""
        return self._attempt.job.idempotency_key

    def should_stop(self) -> bool:
        """Whether the handler should end as soon as it can: its job was cancelled, or its lease
        was lost; or its worker's time to drain is over, when a stop is raised in it as well. Cheap
        enough to ask in a loop."""
        return self._attempt.should_stop()

    def draining(self) -> bool:
        """Whether the worker drains. A handler that can go on elsewhere may leave now, by
        ``raise Snooze(0)``; one that stays has the rest of ``--drain-timeout`` after a signal, and
        as long as it needs where its worker is drained by an operator or is to be replaced. Cheap
        enough to ask in a loop."""
        return self._attempt.draining()

    def progress(self, fraction: float, note: Any = "") -> None:
        """Say how far the handler is, from 0 to 1, and in ``note`` what it is at (of at most 200
        characters).

        Costs a few microseconds and may be called from async code: the newest report of each job is
        written once a second. Raises ``ValueError`` for what is no number from 0 to 1, and
        :class:`LeaseLost` once a write was refused because the job has been taken from this worker.
        """
        try:
            share = float(fraction)
        except (TypeError, ValueError, OverflowError):
            share = nan
        if not 0.0 <= share <= 1.0:  # nor NaN
            raise ValueError(f"progress is a fraction from 0 to 1, not {fraction!r}")
        note_text = "" if note is None else note if type(note) is str else text_of(note)
        self._note_progress()
        self._attempt.reporter.progress(self._attempt, share, note_text)

    def checkpoint(self, data: Any) -> None:
        """Say where the next attempt may begin, as JSON.

        Inside ``transaction.atomic()`` on the jobs' database it is written in that transaction.
        Elsewhere it is written within a second or so, without blocking: call it after the effects
        that it speaks of are committed. Raises :class:`PayloadError` for what cannot be stored,
        :class:`LeaseLost` as :meth:`progress`, and ``ValueError`` where :meth:`iterate` keeps the
        checkpoint.
        """
        if self._attempt.reporter.of(self._attempt).walked:
            raise ValueError("iterate() keeps the checkpoint of this job")
        self._keep(data)

    @property
    def saved_checkpoint(self) -> Any:
        """What the attempts before this one left by :meth:`checkpoint`; None if nothing. Read from
        the database once, when it is first asked for; in an async handler, before it begins."""
        return self._attempt.reporter.saved_checkpoint(self._attempt)

    def iterate(self, queryset: QuerySet[M], key: str = "pk", chunk: int = 500) -> Rows[M]:
        """The rows of ``queryset`` in the order of ``key``, from where the last attempt was; for
        ``for`` and ``async for``.

        A row counts as done when the next one is asked for; that is the checkpoint, and reported as
        progress. Reads ``chunk`` rows at a time, each part behind the last key. Between two rows it
        stops by itself: when the worker drains, so that the next attempt goes on there; when the
        job was cancelled; when the lease was lost. Once in a handler. Raises ``ValueError`` for a
        key that is not unique, and for a queryset that is sliced or in another order.
        """
        rows = Rows(self, queryset, key, chunk)
        reports = self._attempt.reporter.of(self._attempt)
        if reports.walked:
            raise ValueError("a handler can iterate() once: there is one checkpoint")
        reports.walked = True
        return rows

    def once(self, key: str, call: Callable[[], Any]) -> Any:
        """Call ``call`` unless an attempt of this job has done so under ``key``; returns the answer
        of that one call, as JSON gives it back.

        Its receipt is committed at once, also where the handler's transaction is rolled back. What
        ``call`` raises is raised, and nothing stored. A crash between the call and its receipt
        repeats the call. Raises ``ValueError`` for a key that is not text of 1 to 200 characters,
        ``TypeError`` for a call that is async or none, and :class:`LeaseLost` before the call if
        the job has been taken from this worker.
        """
        self._note_progress()
        return once.once(self._attempt, key, call)

    async def aonce(self, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """:meth:`once` for async code: what ``call`` returns is awaited. The answer of a plain call
        is stored and returned as well, for it has been made; but the event loop waits for it."""
        self._note_progress()
        return await once.aonce(self._attempt, key, call)

    def _note_progress(self) -> None:
        """Something is reported: the handler is not silent, as long as it runs."""
        self._attempt.reporter.of(self._attempt)
        self._attempt.on_progress()

    def _keep(self, data: Any) -> None:
        try:
            text = encode(data, max_bytes=conf().max_payload_bytes, name="checkpoint")
        except NotStorable as error:
            raise PayloadError(f"{self.job_type}: {error}") from None
        self._note_progress()
        self._attempt.reporter.checkpoint(self._attempt, text)

    def _begin_again(self) -> None:
        """Forget what the call of the handler before has left: its transaction was rolled back."""
        self._attempt.reporter.of(self._attempt).walked = False

    def _confirm(self) -> None:
        """Have what was reported written now. Raises :class:`LeaseLost` if that is refused."""
        self._attempt.reporter.confirm(self._attempt)

    def _can_go_on_elsewhere(self) -> bool:
        """Whether an attempt that stops now loses nothing: not in a transaction, which would be
        rolled back, nor where there is no next attempt."""
        return not (self._attempt.job.at_most_once or in_transaction(jobs_connection()))


_current: ContextVar[RunContext | None] = ContextVar("django_jobs_run", default=None)


def current_run() -> RunContext | None:
    """The run that the calling handler is in; None outside a worker."""
    return _current.get()
