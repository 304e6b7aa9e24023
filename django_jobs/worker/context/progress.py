"""Writes the reports of the handlers of a process: the newest of each, once a second. Encodes
what they return."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from ...conf import conf
from ...domain.errors import ErrorReport
from ...domain.outcomes import Outcome, Succeeded
from ...domain.payload import encode
from ...lifecycle.claiming import lease_lost
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.progress import ProgressReport, report, take_over
from ...lifecycle.settling import Settled
from ...lifecycle.workflows.results import decoded
from ...models.database import in_transaction, jobs_connection
from ..connections import retry_while_disconnected
from ..events import emit, emit_throttled
from .attempt import Attempt
from .background import BackgroundThread, until_done

EVERY = 1.0
"""Seconds between two writes of a process, for any number of reports."""

PATIENCE = 10.0
"""Seconds to wait for an unavailable database. An unsuccessful attempt waits as long at its end for
its report to be written: the next attempt would repeat the unreported work."""


@dataclass(slots=True, eq=False)
class Reports:
    """The reports of one attempt, and which of them are written.

    The handler's threads set them, and another thread writes them. Each step is a single
    assignment, because a time-out that is raised in the handler could leave a lock held. Values are
    compared by identity, so each checkpoint is in a new tuple.
    """

    job: ClaimedJob
    progress: tuple[float, str] | None = None
    checkpoint: tuple[str] | None = None
    written_progress: tuple[float, str] | None = None
    written_checkpoint: tuple[str] | None = None
    saved: tuple[Any] | None = None
    """The checkpoint of an earlier attempt, once it was read."""
    lost: bool = False
    has_row: bool = False
    """Whether a report is written and committed."""
    walked: bool = False
    """Whether ``iterate`` saves its checkpoint."""
    holder: BaseDatabaseWrapper | None = None
    """The handler's connection, if it wrote the row inside a transaction. The row is locked while
    that is open."""

    @property
    def is_unwritten(self) -> bool:
        return not self.is_checkpoint_written or self.progress is not self.written_progress

    @property
    def is_checkpoint_written(self) -> bool:
        """Whether the last checkpoint outside a transaction is committed."""
        return self.checkpoint is self.written_checkpoint

    @property
    def is_row_locked(self) -> bool:
        """Whether the handler's own transaction may have locked the row."""
        return self.holder is not None and in_transaction(self.holder)


class Reporter:
    """Takes reports without blocking handlers, and writes them outside their transactions."""

    def __init__(self) -> None:
        self.background = BackgroundThread()
        self._open: dict[Attempt, Reports] = {}
        self._planned_for = 0.0
        self._wrote_at = float("-inf")

    def of(self, attempt: Attempt) -> Reports:
        """The reports of the attempt. Raises :class:`LeaseLost` if a write was refused."""
        job = attempt.job
        reports = self._open.get(attempt)
        if reports is None:
            reports = self._open.setdefault(attempt, Reports(job))
            if not attempt.is_live:  # asked after it was added: either end() sees it, or this
                self._open.pop(attempt, None)
                raise RuntimeError(
                    f"attempt {job.attempt} of job {job.id} has ended; a RunContext is valid only "
                    "while its handler runs"
                )
        if reports.lost:
            raise lease_lost(job)
        return reports

    def progress(self, attempt: Attempt, fraction: float, note: str) -> None:
        """Write this report within about a second. Never blocks."""
        self.of(attempt).progress = fraction, note
        self._plan()

    def checkpoint(self, attempt: Attempt, text: str, *, at_once: bool = False) -> None:
        """Write this checkpoint (JSON text) within about a second, without blocking. Inside a
        transaction of the calling thread write it there now; with ``at_once``, now and outside."""
        reports, connection = self.of(attempt), jobs_connection()
        if at_once:
            self._write_now(reports, text)
            self.of(attempt)
            return
        if not in_transaction(connection):
            if reports.holder is connection:
                reports.holder = None  # its transaction is over
            reports.checkpoint = (text,)
            self._plan()
            return
        # The row has to exist before, so that the next attempt finds it locked.
        self._hold(attempt, connection, make_row=True)
        fraction, note = reports.progress or (None, "")
        if not report(
            [ProgressReport(job=attempt.job, fraction=fraction, note=note, checkpoint=text)]
        ):
            reports.lost = True
            raise lease_lost(attempt.job)

    def saved_checkpoint(self, attempt: Attempt) -> Any:
        """The checkpoint of an earlier attempt, or None. Read once."""
        reports, job = self.of(attempt), attempt.job
        if reports.saved is None:
            text = None
            if job.attempt > 1:
                connection = jobs_connection()
                if in_transaction(connection):
                    self._hold(attempt, connection)
                reports.has_row, text = take_over(job)
            reports.saved = (decoded(text),)
        return reports.saved[0]

    def confirm(self, attempt: Attempt) -> None:
        """Write all reports of the attempt now, unless the database is away for longer than
        :data:`PATIENCE`. Raises :class:`LeaseLost` if the write is refused."""
        self._flush(self.of(attempt))
        self.of(attempt)

    def end(self, attempt: Attempt, outcome: Outcome | Settled | None) -> None:
        """End the reports of an attempt that is about to be settled. ``outcome`` is None if it
        needs no settling.

        If it did not succeed, its report is written first, because after the settle the fence
        refuses it. A receipt of :meth:`RunContext.once` is also written first, however long that
        takes: without it the next attempt would repeat the call.
        """
        # Compared first, because a call costs more than all else here.
        if type(outcome) is not Succeeded and _is_reported_first(outcome):
            self.background.wait_for_attempt(attempt)
            if (reports := self._unwritten(attempt)) is not None:
                self._flush(reports)
        self._close(attempt)

    async def aend(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if _is_reported_first(outcome):
            for future in attempt.submitted:
                await until_done(future)
            if (reports := self._unwritten(attempt)) is not None:
                await until_done(self._flushing(reports), PATIENCE)
        self._close(attempt)

    def _unwritten(self, attempt: Attempt) -> Reports | None:
        reports = self._open.get(attempt)
        if reports is None or reports.lost or not reports.is_unwritten:
            return None
        return reports

    def _close(self, attempt: Attempt) -> None:
        attempt.is_live = False
        self._open.pop(attempt, None)

    def _hold(
        self, attempt: Attempt, connection: BaseDatabaseWrapper, make_row: bool = False
    ) -> None:
        """Note that the handler's transaction is about to lock the row, so that no older checkpoint
        overwrites the newer one afterwards."""
        reports = self.of(attempt)
        if (reports.has_row or not make_row) and reports.is_checkpoint_written:
            reports.holder = connection
            return
        self._flush(reports)
        self.of(attempt)
        if not (reports.has_row and reports.is_checkpoint_written):
            raise OperationalError("earlier reports could not be written")
        reports.holder = connection

    def _flush(self, reports: Reports) -> None:
        with contextlib.suppress(TimeoutError):
            self._flushing(reports).result(PATIENCE)

    def _flushing(self, reports: Reports) -> Future[bool]:
        until = time.monotonic() + PATIENCE
        return self.background.submit(lambda: self._write([reports], until))

    def _write_now(self, reports: Reports, text: str) -> None:
        """Write a checkpoint outside of the handler's transaction, or later if that fails now."""
        reports.checkpoint = kept = (text,)
        news = [ProgressReport(job=reports.job, checkpoint=text)]
        until = time.monotonic() + PATIENCE
        written = self.background.wait(self.background.submit(lambda: self._report(news, until)))
        if written is None:
            self._plan(EVERY)
        else:
            reports.written_checkpoint, reports.lost = kept, not written

    def _plan(self, soonest: float = 0.0) -> None:
        """Schedule a write of all unwritten reports, :data:`EVERY` seconds after the last one."""
        now = time.monotonic()
        # Planned again if it is overdue: a time-out may have been raised in a handler between these
        # two lines.
        if not self._planned_for or now > self._planned_for + EVERY:
            self._planned_for = max(self._wrote_at + EVERY, now + soonest)
            self.background.submit(self._write_all, after=self._planned_for - now)

    def _write_all(self) -> None:
        self._planned_for = 0.0  # reports from here on may miss this write
        self._wrote_at = time.monotonic()
        unwritten = [
            reports
            for reports in list(self._open.values())
            if reports.is_unwritten and not reports.lost
        ]
        free = [reports for reports in unwritten if not reports.is_row_locked]
        if not self._write(free) or len(free) < len(unwritten):
            self._plan(EVERY)

    def _write(self, batch: Sequence[Reports], until: float = 0.0) -> bool:
        """Write new reports, with retries until then. Returns False if nothing could be written."""
        # Copied now, because handlers report while this is written.
        taken = [
            (reports, reports.progress, reports.checkpoint)
            for reports in batch
            if not reports.is_row_locked
        ]
        if not taken:
            return True
        news = [_news(*values) for values in taken]
        try:
            written = self._report(news, until)
        except Exception:  # one with a locked row must not stop the others
            return False not in [self._write([reports], until) for reports in batch]
        if written is None:
            return False
        for reports, progress, checkpoint in taken:
            reports.written_progress, reports.written_checkpoint = progress, checkpoint
            reports.has_row = (reports.job.id, reports.job.attempt) in written
            reports.lost = not reports.has_row
        return True

    def _report(self, news: list[ProgressReport], until: float) -> set[tuple[int, int]] | None:
        """Write them, and return those written; None if the only one was not. Several may raise."""
        try:
            return retry_while_disconnected(
                lambda: report(news),
                what="report",
                until=until,
                deadline=self.background.deadline,
            )
        except Exception as error:  # StatementTimedOut, or any other: it must not affect a handler
            if len(news) > 1:
                raise
            emit_throttled("report_failed", logging.WARNING, jobs=len(news), error=repr(error))
            return None


def _is_reported_first(outcome: Outcome | Settled | None) -> bool:
    """Whether the reports are written before the settle: the next attempt may need them."""
    return not (outcome is None or isinstance(outcome, (Succeeded, Settled)))


def _news(
    reports: Reports, progress: tuple[float, str] | None, checkpoint: tuple[str] | None
) -> ProgressReport:
    is_new = progress is not reports.written_progress
    fraction, note = progress if progress and is_new else (None, "")
    is_new = checkpoint is not reports.written_checkpoint
    text = checkpoint[0] if checkpoint and is_new else None
    return ProgressReport(job=reports.job, fraction=fraction, note=note, checkpoint=text)


JSON_TYPES = frozenset({dict, list, tuple, str, int, float, bool})


class NeverRan(Exception):
    """The handler returned work that is never run."""


def check_that_it_ran(result: Any) -> None:
    """Raise :class:`NeverRan` for a result whose body has not run: a coroutine or another
    awaitable, or a generator. Another attempt would return the same."""
    if type(result) in JSON_TYPES:
        return
    try:
        problem = _why_it_never_ran(result)
    except Exception:  # a lazy object may raise anything when it is looked at; it is no coroutine
        return
    if problem:
        raise NeverRan(problem)


def _why_it_never_ran(result: Any) -> str:
    """Empty if it has run."""
    name = getattr(result, "__qualname__", "")
    if inspect.isawaitable(result):
        what = f"the coroutine {name}" if inspect.iscoroutine(result) else f"a {_kind(result)}"
        advice = (
            "declare the handler `async def` and await it there; a decorator around an async "
            "handler has to be `async def` itself"
        )
    elif inspect.isgenerator(result):
        what, advice = f"the generator {name}", "go through it in the handler, as by list(...)"
    elif inspect.isasyncgen(result):
        what = f"the async generator {name}"
        advice = "declare the handler `async def` and go through it there by `async for`"
    else:
        return ""
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns that it was never awaited
    return f"it returned {what}, which is never run: {advice}"


def _kind(value: object) -> str:
    return type(value).__qualname__


_unstored: set[str] = set()
"""The job types whose unstorable result was logged."""


def encode_result(result: Any, job_type: str, job_id: int) -> Succeeded:
    """The outcome of a handler that returned ``result``. One that cannot be stored is replaced by a
    note, as by :func:`encode_answer`, and logged once per job type."""
    text, problem = _encoded(result, "result", job_id)
    if problem and job_type not in _unstored:
        _unstored.add(job_type)
        emit("result_not_stored", logging.WARNING, job_type=job_type, reason=problem)
    return Succeeded(result=text, not_stored=problem)


def encode_answer(value: Any, name: str) -> str:
    """``value`` as JSON text. A value that cannot be stored is replaced by a note, because the
    handler has done its work and must not fail."""
    return _encoded(value, name)[0]


def note_of(error: Exception) -> str:
    """The JSON text that replaces a value which cannot be stored because of ``error``."""
    return json.dumps({"not_stored": ErrorReport.of(error).message})


def _encoded(value: Any, name: str, job_id: int | None = None) -> tuple[str, str]:
    """The JSON text, and the reason if it is a note. With a ``job_id`` it may have files."""
    most = conf().max_result_bytes
    try:
        if job_id is not None and conf().storage is not None:
            from ...lifecycle.stored_files import encoded_of

            save = partial(encoded_of, job_id, value, max_bytes=most, name=name)
            return _unless_disconnected(save), ""
        return encode(value, max_bytes=most, name=name), ""
    except Exception as error:  # a dict subclass of the handler may raise anything
        return note_of(error), ErrorReport.of(error).message


def _unless_disconnected(save: Callable[[], str]) -> str:
    """Call ``save``, outside of transactions again and again while the database is away."""
    if in_transaction(jobs_connection()):
        return save()
    until = time.monotonic() + PATIENCE
    return retry_while_disconnected(save, what="result", until=until) or save()
