"""One attempt of a job in this process, shared by its thread, its handler and its reports."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ... import registry
from ...api.generations import GENERATION, PARENT, generation_in, parent_in
from ...api.job_type import JobType
from ...domain.outcomes import Outcome, Snoozed
from ...domain.run_log import RunLog
from ...domain.workflows import CALLBACK
from ...lifecycle.job_columns import AT_ITS_RUN_AT, ClaimedJob
from ...lifecycle.settling import Ending
from ..connections import nothing
from ..ipc.scoreboard import StartedJob, WorkerSlot
from ..meters import Meter

if TYPE_CHECKING:
    from asyncio import Task
    from weakref import WeakSet

    from ..timeouts.limits import TimeLimit
    from .progress import Reporter

AROUND_SECONDS = 60.0
"""What happens before the call of an async handler, such as hooks and the wait for a connection,
may take this long in addition to its time-out, and what happens after it this long."""

NOTES = "edits", "replays", GENERATION, PARENT, AT_ITS_RUN_AT, CALLBACK
"""Headers that this package adds. They were not passed to ``using()``, and those of operators'
changes may hold arguments that an edit took away."""

RunAsync = Callable[[Any, float | None], Any]
AwaitAsync = Callable[[Any, float | None], Awaitable[Any]]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class StopHandler(BaseException):
    """Raised in a handler when the drain timeout is over."""


class Suspended(BaseException):
    """Raised in a handler that sleeps or waits. No ``except Exception`` catches it."""

    def __init__(self, outcome: Snoozed) -> None:
        super().__init__(f"the handler waits for {outcome.awaits or f'{outcome.seconds:.3f} s'}")
        self.outcome = outcome


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """An attempt from its start to its settle. Belongs to the thread that runs its handler."""

    job: ClaimedJob
    slot: WorkerSlot
    reporter: Reporter
    stopping: Callable[[], bool] = field(kw_only=True)
    draining: Callable[[], bool] = field(kw_only=True)
    job_type: JobType[..., Any] | None = field(init=False)
    entry: StartedJob = field(init=False)
    """Its entry on the scoreboard, once it has started."""
    started: float = 0.0
    """A time of ``time.monotonic()``."""
    limit: TimeLimit | None = None
    """The time limit of a plain handler."""
    run_async: RunAsync | None = None
    """Runs an async handler from another thread than that of the loop."""
    await_async: AwaitAsync | None = None
    """Runs an async handler in a task of the loop."""
    in_thread: InThread | None = None
    """Makes a blocking call for it in its thread, in the context of its task."""
    on_progress: Callable[[], None] = nothing
    """Called for every report of the handler."""
    meter: Meter | None = None
    """What measures it, if anything does."""
    log: RunLog | None = None
    """What it has logged, if that is kept."""
    submitted: list[Future[Any]] = field(default_factory=list)
    """Tasks of the background thread that have to end before the attempt is settled: receipts."""
    tasks: WeakSet[Task[Any]] | None = None
    """What its async handler has started on the loop, if anything."""
    in_handler: bool = False
    """Whether an exception that is raised in its thread arrives in its handler."""
    in_call: bool = False
    """Whether a plain handler runs that was called without a limit."""
    end_statements: Callable[[], object] = nothing
    """Ends what the servers do for its handler."""
    traceparent: str = ""
    """The span of this attempt, if a hook traces it."""
    is_live: bool = True
    """Whether its handler may still report."""
    generation: int = 0
    """How many handlers, one after the other, led to its job."""
    parent_id: int | None = None
    """The job whose handler enqueued its job."""
    headers: dict[str, Any] = field(init=False)
    deadline: datetime | None = field(init=False)
    scheduled_for: datetime | None = field(init=False)

    def __post_init__(self) -> None:
        self.job_type = registry.find(self.job.job_type)

    def begin(self) -> None:
        """Put the attempt on the scoreboard, in a thread of this process. The time limits of a
        plain handler count from here."""
        self.started = time.monotonic()
        job = self.job
        deadline, silence = self._times()
        self.entry = self.slot.start(job.id, job.attempt, job.worker, deadline, False, silence)

    def begin_isolated(self, index: int) -> None:
        """Start the time limits, in the child that runs the attempt."""
        self.started = time.monotonic()
        self.entry = self.slot.entries[index]
        self.entry.begin(*self._times())

    def await_child(self) -> None:
        """Put the attempt on the scoreboard without time limits: they count in its child."""
        self.started = time.monotonic()
        job = self.job
        self.entry = self.slot.start(job.id, job.attempt, job.worker, alone=True)

    def begin_handler(self) -> None:
        """Start the time limits of an async handler."""
        self.entry.begin(*self._times(time.monotonic()))
        self.slot.watched = True
        self._set_deadline()

    def end_handler(self) -> None:
        """Stop the time limits of an async handler, unless it exceeded one: then its blocking calls
        have to end."""
        entry, now = self.entry, time.monotonic()
        is_late = entry.deadline and now >= entry.deadline
        is_silent = entry.silence and now >= entry.progress_at + entry.silence
        if not (is_late or is_silent):
            entry.bound(now + AROUND_SECONDS if entry.deadline else 0.0, 0.0)

    def read(self) -> None:
        """Read the fields that the handler can use. Raises if ``enqueue`` did not write the row."""
        job = self.job
        self.headers = object_in(job.headers)
        if self.headers:
            self.generation = generation_in(self.headers)
            self.parent_id = parent_in(self.headers)
            for name in NOTES:
                self.headers.pop(name, None)
        self.deadline = self.scheduled_for = None
        if job.timeout is not None:
            self._set_deadline()
        if job.scheduled_for is not None:
            self.scheduled_for = datetime.fromtimestamp(job.scheduled_for, UTC)

    def should_stop(self) -> bool:
        """Whether the handler should end as soon as possible."""
        return self.entry.cancel_asked or self.has_to_stop()

    def has_to_stop(self) -> bool:
        """Whether what the handler calls of its run may end it."""
        return (
            not self.is_live
            or self.stopping()
            or self.raises_cancel()
            or self.slot.worker != self.job.worker
        )

    def raises_cancel(self) -> bool:
        entry, job_type = self.entry, self.job_type
        if not entry.cancel_asked:
            return False
        return job_type is None or job_type.on_cancel == "raise" or entry.forced_at > 0

    def ending(self, outcome: Outcome, finished: float | None = None) -> Ending:
        """Its end, with what was measured, logged and traced. ``finished`` is now by default."""
        ending = Ending(self.job, outcome, self.started, finished or time.monotonic())
        if self.meter is not None:
            ran = 0.0 if self.started is None else ending.finished - self.started
            ending.cost = self.meter.read(ran)
        if self.log is not None:
            ending.log = self.log.text()
        if self.traceparent:
            ending.traceparent = self.traceparent
        return ending

    def _set_deadline(self) -> None:
        self.deadline = None
        if self.job.timeout is not None:
            left = self.entry.started + self.job.timeout - time.monotonic()
            self.deadline = datetime.now(UTC) + timedelta(seconds=left)

    def _times(self, called: float | None = None) -> tuple[float, float]:
        """The deadline and the longest silence, for the scoreboard; 0 means none. ``called`` is
        when an async handler was called: before that its limits do not count."""
        timeout, job_type = self.job.timeout, self.job_type
        if called is None and job_type is not None and job_type.is_async:
            return (0.0 if timeout is None else self.started + timeout + AROUND_SECONDS), 0.0
        deadline = 0.0 if timeout is None else (called or self.started) + timeout
        return deadline, 0.0 if job_type is None else job_type.silence_timeout or 0.0


def object_in(text: str) -> dict[str, Any]:
    """The JSON object of a column. Raises ``ValueError`` for any other JSON."""
    if text == "{}":
        return {}
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not an object of names and values")
    return value
