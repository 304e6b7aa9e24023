"""The exceptions of a rule: due times that are skipped, are moved or have another payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from heapq import merge
from itertools import groupby
from typing import NamedTuple

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
