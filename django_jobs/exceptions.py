"""Every exception of the package.

JobsError
├── EnqueueError            the request cannot become a job
│   ├── UnknownQueue
│   ├── UnknownJobType
│   ├── PayloadError
│   └── QueueFull
├── NotMigrated             the tables of the jobs do not exist, or are of older code
├── OperationRefused        an operator's action was refused
├── LeaseLost               the attempt is no longer this worker's
├── TimeLimitExceeded       raised in a handler whose time is over
└── Fate                    raised by a handler to choose what becomes of its job
    ├── Retry
    ├── Snooze
    ├── Discard
    └── Cancel
"""

from __future__ import annotations

from typing import Any

from .domain.durations import Duration, as_seconds
from .domain.errors import text_of
from .domain.payload import a_kind


class JobsError(Exception):
    """The root of all exceptions of django_jobs."""


class EnqueueError(JobsError, ValueError):
    """The request cannot become a job. ``enqueue`` has written nothing then, and the caller's
    transaction is unharmed; ``enqueue_many`` outside of ``transaction.atomic()`` may have committed
    earlier batches of 5,000."""


class UnknownQueue(EnqueueError):
    """No queue bears that name."""


class UnknownJobType(EnqueueError):
    """No handler is registered under that name."""


class PayloadError(EnqueueError):
    """The arguments do not fit the handler, or cannot be stored as JSON."""


class QueueFull(EnqueueError):
    """The queue holds as many ready jobs as its ``max_backlog`` allows."""


class NotMigrated(JobsError):
    """The tables of the jobs do not exist, or are of older code: run ``manage.py migrate``. As any
    error of the database it leaves the transaction around it fit for a rollback only."""


class OperationRefused(JobsError):
    """An operator's action was refused; the message says why. Nothing was changed."""


class LeaseLost(JobsError):
    """The attempt no longer belongs to this worker: its lease ran out and the job was taken from
    it. Whatever was written in the same transaction is rolled back."""


class TimeLimitExceeded(JobsError):
    """The attempt's time-out is over. Raised in the handler, which has a second to clean up before
    its process is killed; the attempt has timed out whatever it does then."""


class Fate(JobsError):
    """Base of what a handler raises to choose the fate of its job.

    ``reason`` may be anything that has a text: a lazy translation, an exception.
    """


class Retry(Fate):
    """Run again ``after`` so many seconds (or a timedelta; at most a day), or after the job's
    backoff. Counts as a failure."""

    def __init__(self, after: Duration | None = None, reason: Any = "") -> None:
        self.after = as_seconds(after)
        self.reason = _text_of(reason)
        if after is not None and self.after is None:
            self.reason = _with_note(self.reason, after, "its backoff decides")
        super().__init__(self.reason or "retry asked for")


class Snooze(Fate):
    """Run again in ``seconds`` (or a timedelta). Does not count as a failure."""

    def __init__(self, seconds: Duration, reason: Any = "") -> None:
        usable = as_seconds(seconds)
        self.seconds = usable or 0.0
        self.reason = _text_of(reason)
        if usable is None:
            self.reason = _with_note(self.reason, seconds, "it runs again at once")
        super().__init__(self.reason or f"snoozed for {self.seconds:g} s")


class Discard(Fate):
    """Do not run again: the job goes straight to the dead letters."""

    def __init__(self, reason: Any = "") -> None:
        self.reason = _text_of(reason)
        super().__init__(self.reason or "discarded by its handler")


class Cancel(Fate):
    """End the job as cancelled."""

    def __init__(self, reason: Any = "") -> None:
        self.reason = _text_of(reason)
        super().__init__(self.reason or "cancelled by its handler")


def _text_of(reason: Any) -> str:
    return "" if reason is None else text_of(reason)


def _with_note(reason: str, given: Any, instead: str) -> str:
    note = f"{a_kind(given)} that is no number of seconds was given: {instead}"
    return f"{reason} ({note})" if reason else note
