"""What a schedule does about late due times and live jobs, and the exceptions of its rule: due
times that are skipped, moved or have another payload. Models need both without the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from heapq import merge
from itertools import groupby
from math import inf
from typing import NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of intervals without one, so that every hour means on the hour."""

ON_TIME_SECONDS = 60.0
"""A due time that a worker sees within this time is not missed."""


def in_utc(at: datetime) -> datetime:
    """The same instant in UTC. Within another zone, differences and comparisons ignore which pass
    of a repeated hour is meant (PEP 495). A naive time stays as it is, and so does one that Python
    cannot represent in UTC."""
    try:
        return at if at.utcoffset() is None else at.astimezone(UTC)
    except OverflowError:
        return at


class Overlap(StrEnum):
    """What to do when a due time comes while a job of the schedule is still live."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which of the missed due times still make a job."""

    LATEST = "latest"
    SKIP = "skip"
    AT_MOST = "at_most"
    WINDOW = "window"


MOST_AT_ONCE = 100
"""Jobs that a schedule makes at one time, at most, by any policy."""

LIMITS = {CatchUp.AT_MOST: (1, MOST_AT_ONCE), CatchUp.WINDOW: (ON_TIME_SECONDS, inf)}
"""The least and the most that the ``limit`` of a policy may be: jobs, and seconds."""

MOST_MOVED = timedelta(hours=12)
"""How far back to look for a due time that is earlier by other time zone tables. They have moved
clocks by up to three hours, and by a day where the date line moved. In half a day a daily rule that
was edited since has no due time of before."""


class TickState(StrEnum):
    """The outcome of a due time."""

    FIRED = "fired"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_LATE = "skipped_late"
    SKIPPED = "skipped"
    SUPPRESSED = "suppressed"


Has = Callable[[datetime], bool]
"""Whether a time is a due time by the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the due time ``due`` of a schedule does instead. Times are in UTC. ``payload_json``
    replaces the payload of the schedule, unless it is None."""

    due: datetime
    skipped: bool = False
    moved_to: datetime | None = None
    payload_json: str | None = None
    payload_version: int = 1
    by: str = ""
    reason: str = ""

    @property
    def last(self) -> datetime:
        """The later one of its two times."""
        return max(self.due, self.moved_to or self.due)

    @property
    def text(self) -> str:
        """``moved to 2026-11-30 09:00:00 UTC by ann: the bank is closed``."""
        return self.text_in(UTC)

    @property
    def text_there(self) -> str:
        """The same at the time to which it is moved, with that from which it is."""
        return self.text_in(UTC, there=True)

    def text_in(self, zone: tzinfo, *, there: bool = False) -> str:
        """The text with times in ``zone``; ``there`` for :attr:`text_there`."""
        what = "skipped" if self.skipped else ""
        if self.moved_to is not None:
            way, at = ("from", self.due) if there else ("to", self.moved_to)
            what = f"moved {way} {zone_text(at, zone)}"
        if self.payload_json is not None:
            what = f"{what} with another payload".strip()
        by = f" by {self.by}" if self.by else ""
        return f"{what}{by}: {self.reason}" if self.reason else f"{what}{by}"


class Occurrence(NamedTuple):
    """A due time by the rule, the time ``at`` which it comes, and its exception, if it has one."""

    due: datetime
    at: datetime
    change: Change | None = None

    @property
    def is_skipped(self) -> bool:
        return self.change is not None and self.change.skipped

    def note(self, zone: tzinfo) -> str:
        """Its exception in words, with times in ``zone``; empty without one."""
        return "" if self.change is None else self.change.text_in(zone, there=True)


def changed(
    due_times: Iterable[datetime], changes: Sequence[Change], after: datetime, has: Has
) -> Iterator[datetime]:
    """The ascending due times with those that are moved, each moment once."""
    away = {change.due for change in changes if change.moved_to is not None}
    moved = sorted(
        change.moved_to
        for change in changes
        if change.moved_to is not None and change.moved_to > after and has(change.due)
    )
    remaining = (due for due in due_times if due not in away)
    return (due for due, _ in groupby(merge(remaining, moved)))


def occurrences(
    moments: Iterable[datetime], changes: Sequence[Change], has: Has
) -> list[Occurrence]:
    """What comes at these moments of :func:`changed`."""
    by_due = {change.due: change for change in changes}
    moved_to = {change.moved_to for change in changes}
    found = []
    for at in moments:
        here = []
        if at in moved_to:
            moved = (change for change in changes if change.moved_to == at)
            here = [Occurrence(change.due, at, change) for change in moved if has(change.due)]
        change = by_due.get(at)
        if (change is None or change.moved_to is None) and (not here or has(at)):
            here.append(Occurrence(at, at, change))
        found += here
    return found


def zone_text(at: datetime, zone: tzinfo) -> str:
    """``2026-11-30 09:00:00 CET``, with the fraction of a second if there is one."""
    local = at.astimezone(zone)
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{fraction} {local:%Z}"
