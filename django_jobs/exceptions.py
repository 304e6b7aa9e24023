"""The exceptions of the package."""

from __future__ import annotations

from typing import Any

from .domain.hints import Explained
from .domain.numbers import Duration, as_seconds, is_priority, is_whole
from .domain.payload import a_kind
from .domain.workflows import Skipped


class JobsError(Exception):
    """The base class of all exceptions of django_jobs."""


class EnqueueError(JobsError, ValueError):
    """The job was not enqueued. ``enqueue`` has written nothing, and the caller's transaction can
    be committed. A trigger of yours may be the cause, which drops the row with NULL before INSERT.
    ``enqueue_many`` outside ``transaction.atomic()`` may have committed batches of 5,000 jobs."""


class UnknownQueue(EnqueueError):
    """No queue has this name."""


class UnknownResource(EnqueueError):
    """No resource has this name."""


class UnknownJobType(EnqueueError):
    """No handler is registered under this name."""


class PayloadError(EnqueueError):
    """The handler does not take these arguments, or they cannot be stored as JSON."""


class QueueFull(EnqueueError):
    """The number of jobs in the queue that are ready, or wait at their gates, has reached its
    ``max_backlog``, or would exceed it; or that of the jobs that wait for a resource, a tenant or a
    concurrency key its ``max_waiting``."""


class DuplicateJob(EnqueueError):
    """Another job holds the idempotency key, and ``on_duplicate="raise"``, or a Task was enqueued
    and it is of no Task. ``job`` is that job."""

    def __init__(self, message: str, job: Any = None) -> None:
        super().__init__(message)
        self.job = job


class WorkflowError(JobsError, ValueError):
    """The graph of a workflow cannot work, or differs from the stored one of the same version. A
    start has written nothing."""


class NotMigrated(JobsError):
    """The tables do not exist, or belong to an older version: run ``manage.py migrate``. The
    current transaction can only be rolled back, as after any database error."""


class OperationRefused(JobsError):
    """An operator's action was refused, for the reason in the message. Nothing was changed."""


class LeaseLost(JobsError):
    """The lease of the attempt ran out. Writes in the same transaction are rolled back."""


class HookError(JobsError):
    """A hook raised an exception at the run of a job, before its handler was called or after it had
    returned; or a hook is no context manager. The run is a failed attempt, which is retried
    regardless of the ``retry_on`` and ``discard_on`` of the job type. The cause has the details."""


class SignalTimeout(JobsError):
    """The time-out of ``run.wait_for(name)`` was over before the signal ``name`` arrived. It is
    raised in every later attempt too. If the handler does not catch it, the job is dead, unless its
    ``retry_on`` names this class. A replay waits again."""

    TEXT = "the signal '{}' did not arrive in time"
    """Of its message, by which a replay finds the wait that it is to forget."""

    def __init__(self, name: str) -> None:
        super().__init__(self.TEXT.format(name))
        self.name = name


class TimeLimitExceeded(JobsError):
    """The attempt exceeded its time-out. Raised in the handler, which has a second to clean up
    before its process is killed. The attempt counts as timed out even if the handler catches it."""


class Fate(JobsError, metaclass=Explained):
    """The base class of the exceptions that decide what happens to the job.

    ``reason`` is text, or any object that ``str()`` accepts, such as a lazy translation.
    """


class Retry(Fate):
    """Run the job again ``after`` this many seconds (or a timedelta), at most a day. None means the
    job's backoff. Counts as a failure: if no attempts are left, the job is dead.

    From then on the job is in ``queue`` and has ``priority`` (-100 to 100), if they are given. It
    stays in its queue if no such queue exists, or if another job there holds its idempotency key;
    the error of the run says so.

    ``max_attempts`` replaces that of the job for this failure. A job that is delivered at most once
    runs again only if it is given: the handler then says that this attempt has ended in good order.
    """

    def __init__(
        self,
        after: Duration | None = None,
        reason: Any = "",
        *,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> None:
        self.after = as_seconds(after)
        self.queue = queue if isinstance(queue, str) else None
        self.priority = priority if is_priority(priority) else None
        self.max_attempts = max_attempts if is_whole(max_attempts) else None
        self.reason = _text_of(reason) or (after if isinstance(after, str) else "")
        if after is not None and self.after is None:
            self.reason = _with_note(self.reason, after, "a number of seconds: its backoff decides")
        if queue is not None and self.queue is None:
            self.reason = _with_note(self.reason, queue, "the name of a queue: it stays in its own")
        if priority is not None and self.priority is None:
            known = "a whole number from -100 to 100: it keeps its priority"
            self.reason = _with_note(self.reason, priority, known)
        if max_attempts is not None and self.max_attempts is None:
            known = "a whole number: the job keeps its own"
            self.reason = _with_note(self.reason, max_attempts, known)
        super().__init__(self.reason or "retry asked for")


SNOOZE_WITHOUT_TIME = 60.0
"""Seconds of a snooze whose own are unusable. At once the job would run for ever, a thousand times
in a minute, because no snooze counts as a failure."""


class Snooze(Fate):
    """Run the job again in ``seconds`` (or a timedelta), at most 366 days. Does not count as a
    failure. In a minute if that is no number, which the reason then says."""

    def __init__(self, seconds: Duration, reason: Any = "") -> None:
        usable = as_seconds(seconds)
        self.seconds = SNOOZE_WITHOUT_TIME if usable is None else usable
        self.reason = _text_of(reason) or (seconds if isinstance(seconds, str) else "")
        if usable is None:
            known = "a number of seconds: it runs again in a minute"
            self.reason = _with_note(self.reason, seconds, known)
        super().__init__(self.reason or f"snoozed for {self.seconds:g} s")


class Discard(Fate):
    """Make the job dead. Counts as a failure that is not retried."""

    def __init__(self, reason: Any = "") -> None:
        self.reason = _text_of(reason)
        super().__init__(self.reason or "discarded by its handler")


class ResultNotStored(Discard):
    """A step takes the result of another one, or reads it from ``run.results`` or from a child, and
    it was not stored: it was too large, or no JSON. The job is dead, because another attempt would
    find no more."""


class Cancel(Fate):
    """Make the job cancelled."""

    def __init__(self, reason: Any = "") -> None:
        self.reason = _text_of(reason)
        super().__init__(self.reason or "cancelled by its handler")


class Skip(Cancel):
    """Make the job cancelled because it is not needed; its reason begins with ``skipped:``. The run
    of a step can still succeed, and what needs the success of the step is skipped too."""

    skipped = Skipped.UNNEEDED

    def __init__(self, reason: Any = "") -> None:
        super().__init__(f"skipped: {_text_of(reason) or 'not needed'}")


class Cancelled(BaseException):
    """The cancel of the job was asked for, and its worker knows of it. Raised in the handler by the
    methods of its run that report or make a call, unless its job type has ``on_cancel="ask"``.

    No ``except Exception`` of the handler catches it. A handler that catches it may clean up, and
    should raise it again: if it returns, it has succeeded.
    """

    def __init__(self, reason: str = "cancelled while running") -> None:
        super().__init__(reason)


def _text_of(reason: Any) -> str:
    from .domain.errors import text_of

    return "" if reason is None else text_of(reason)


def _with_note(reason: str, value: Any, expected: str) -> str:
    from .domain.errors import cut

    shown = cut(_text_of(value), 20) if isinstance(value, int) else a_kind(value)
    note = f"{shown} is not {expected}"
    return f"{reason} ({note})" if reason else note
