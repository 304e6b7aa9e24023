"""When a rule is due in a span of time, and how often, without a visit to each due time; and what
happens to the due times that no worker saw in time."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

from .cron import LocalTimes, check_timezone, local_times
from .policies import EPOCH, MOST_AT_ONCE, MOST_MOVED, ON_TIME_SECONDS, CatchUp, Occurrence, in_utc
from .schedules import DAY, INSTANT, SECOND, Rule, next_interval

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTimes:
    count: int = 0
    first: tuple[datetime, ...] = ()
    """The first ones, in UTC."""
    last: datetime | None = None
    change: str = ""
    """What the clock of the rule does in the span, in the words of :func:`clock_change`."""
    left_out: bool = False
    """Whether the clock skips a local time, and the rule leaves it out."""


class Stretch(NamedTuple):
    """A span in which a local clock has one offset, and the offset before it."""

    begin: datetime
    end: datetime
    offset: timedelta
    before: timedelta


class Run(NamedTuple):
    """Due times: some multiples of a step after an instant."""

    start: datetime
    numbers: Sequence[int]
    step: timedelta = MINUTE

    def at(self, index: int) -> datetime:
        return self.start + self.numbers[index] * self.step


def due_between(
    rule: Rule, begin: datetime, end: datetime, most: int, limit: int | None = None
) -> DueTimes:
    """The due times from ``begin`` until before ``end``, the first ``limit`` of them if given; of
    these ``most`` are returned. The work does not depend on how many there are, and is small for a
    few days.

    Raises ``ValueError`` for an invalid rule, and ``OverflowError`` past the year 9999.
    """
    begin, end = in_utc(begin), in_utc(end)
    if rule.starts_at is not None:
        begin = max(begin, rule.starts_at)
    if rule.ends_at is not None and rule.ends_at < end:
        end = rule.ends_at + INSTANT
    if begin >= end or limit == 0:
        return DueTimes()
    if rule.every is not None:
        return _summed(_of_interval(rule, rule.every, begin, end), most, limit)
    excluded = rule.excluded_dates
    times = local_times(rule.cron, rule.name if "h" in rule.cron.lower() else "")
    spans = stretches(rule.timezone, begin, end)
    change, left_out = "", False
    runs: list[Run] = []
    fills_gaps = rule.dst != "skip" and not times.every_hour
    for span in spans:
        first, last = max(begin, span.begin), min(end, span.end)
        if first >= last:
            continue
        wall, shift = _wall(first, span.offset), span.offset - span.before
        if shift and span.begin >= begin:
            change = "clock goes forward" if shift > timedelta() else "clock goes back"
            in_gap = any(_runs(times, _wall(first, span.before), wall, span.offset))
            if in_gap and wall.date() not in excluded:
                if not fills_gaps:
                    left_out = left_out or not times.every_hour
                elif not any(_runs(times, wall, wall + INSTANT, span.offset)):
                    runs.append(Run(first, (0,)))
        if shift < timedelta() and rule.dst != "twice" and not times.every_hour:
            wall = max(wall, _wall(span.begin, span.before))  # until then, local times occur again
        runs += _runs(times, wall, _wall(last, span.offset), span.offset, excluded)
    return _summed(runs, most, limit, change, left_out)


def with_changes(
    rule: Rule, due: DueTimes, begin: datetime, end: datetime, most: int, limit: int | None = None
) -> tuple[DueTimes, list[Occurrence]]:
    """The same for a rule with exceptions, without those that are skipped, and each of two at one
    moment; and the exceptions in the span. Visits each due time of a span that has one: it is to
    be a day."""
    changes = [
        change
        for change in rule.changes
        if begin <= change.due < end or begin <= (change.moved_to or change.due) < end
    ]
    if not changes:
        return due, []
    coming = rule.occurrences(takewhile(lambda at: at < end, rule.due_times(begin - INSTANT)))
    times = [one.at for one in coming if not one.is_skipped][:limit]
    last = times[-1] if times else None
    due = replace(due, count=len(times), first=tuple(times[:most]), last=last)
    away = [
        Occurrence(change.due, change.moved_to, change)
        for change in changes
        if change.moved_to is not None and begin <= change.due < end and rule.has(change.due)
    ]
    here = [one for one in coming if one.change is not None and one not in away]
    return due, sorted([*away, *here], key=lambda one: one.due)


def _summed(
    runs: Iterable[Run], most: int, limit: int | None, change: str = "", left_out: bool = False
) -> DueTimes:
    count, last = 0, None
    first: list[datetime] = []
    for run in runs:
        number = len(run.numbers)
        if limit is not None and number > limit - count:
            number = limit - count
        if not number:
            break
        count, last = count + number, run.at(number - 1)
        first += [run.at(index) for index in range(min(number, most - len(first)))]
    return DueTimes(count=count, first=tuple(first), last=last, change=change, left_out=left_out)


def _of_interval(rule: Rule, every: float, begin: datetime, end: datetime) -> Iterator[Run]:
    step = timedelta(seconds=every)
    for since, until in _not_excluded(rule, begin, end):
        first = next_interval(rule.starts_at or EPOCH, every, since - INSTANT)
        if first < until:
            yield Run(first, range((until - INSTANT - first) // step + 1), step)


def _not_excluded(
    rule: Rule, begin: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """The parts of a span that are on no excluded date."""
    if rule.excluded_dates:
        for span in stretches(rule.timezone, begin, end):
            walls = (_wall(at, span.offset) for at in (max(begin, span.begin), min(end, span.end)))
            first, last = (wall.date() for wall in walls)
            for day in sorted(rule.excluded_dates):
                if first <= day <= last:
                    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC) - span.offset
                    since, until = max(midnight, span.begin), min(midnight + DAY, span.end)
                    if begin < since:
                        yield begin, min(since, end)
                    begin = max(begin, until)
    if begin < end:
        yield begin, end


def _runs(
    times: LocalTimes,
    begin: datetime,
    end: datetime,
    offset: timedelta,
    excluded: Collection[date] = (),
) -> Iterator[Run]:
    """The due times whose local times are from ``begin`` until before ``end``, day by day."""
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    while midnight < end:
        if times.on(midnight) and midnight.date() not in excluded:
            first, last = (
                bisect_left(times.minutes, -((midnight - wall) // MINUTE)) for wall in (begin, end)
            )
            if first < last:
                start = (midnight - offset).replace(tzinfo=UTC)
                yield Run(start, times.minutes[first:last])
        midnight += DAY


def _wall(instant: datetime, offset: timedelta) -> datetime:
    return instant.astimezone(UTC).replace(tzinfo=None) + offset


@lru_cache(maxsize=4_096)
def stretches(timezone: str, begin: datetime, end: datetime) -> tuple[Stretch, ...]:
    """The stretches of a zone's clock from a day before ``begin`` until ``end``. Raises
    ``ValueError`` if no zone has this name."""
    zone = check_timezone(timezone)

    def offset_at(instant: datetime) -> timedelta:
        return instant.astimezone(zone).utcoffset() or timedelta()

    found = []
    at = since = begin.astimezone(UTC) - DAY
    before = offset = offset_at(at)
    while at < end:
        later = min(at + DAY, end.astimezone(UTC))
        if offset_at(later) != offset:
            same, change = at, later
            while change - same > SECOND:
                middle = same + (change - same) // (2 * SECOND) * SECOND
                same, change = (middle, change) if offset_at(middle) == offset else (same, middle)
            found.append(Stretch(since, change, offset, before))
            since, before, offset = change, offset, offset_at(later)
        at = later
    return *found, Stretch(since, at, offset, before)


MOST_MISSED_TICKS = 25
"""Missed due times that get separate ticks when a schedule is planned. The others share one."""


MOST_MOVED_OF_TICKS = timedelta(hours=3)
"""How far a tick is from the due time of today's tables that it stands for, at most. A rule that
was edited leaves ticks near its due times too, and mostly further away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do about the due times of a schedule.

    ``fire`` make jobs and ``late`` were missed or are skipped, each ascending. ``more_missed``:
    others were missed that are in neither. ``next_due`` may be in the past; the next plan begins
    there.
    """

    fire: list[datetime] = field(default_factory=list)
    late: list[datetime] = field(default_factory=list)
    more_missed: bool = False
    next_due: datetime | None


def plan(
    rule: Rule, first: datetime, now: datetime, catch_up: str, limit: float | None = None
) -> Plan:
    """Plan the due times of ``rule`` from ``first`` to ``now``.

    ``limit`` is a number of jobs for ``at_most`` and seconds for ``window``. The work is bounded: a
    rule that is due every second is planned as fast after a year as after a minute.
    """
    first, now = in_utc(first), in_utc(now)
    if catch_up == CatchUp.WINDOW:
        return _in_window(rule, first, now, limit or 0.0)
    count = 1
    if catch_up == CatchUp.AT_MOST:
        count = int(max(min(limit or 1, MOST_AT_ONCE), 1))
    most = count + MOST_MISSED_TICKS + len(rule.changes)
    missed, more_missed, next_due = _newest(rule, first, now, most)
    fire = [at for at in missed if not rule.skips(at)][-count:]
    late = [at for at in missed if at not in fire]
    if catch_up == CatchUp.SKIP and fire and (now - fire[-1]).total_seconds() > ON_TIME_SECONDS:
        fire, late = [], missed
    return Plan(fire=fire, late=late, more_missed=more_missed, next_due=next_due)


def first_due(
    rule: Rule,
    stored: datetime | None,
    now: datetime,
    *,
    last: datetime | None,
    since: datetime | None,
) -> datetime | None:
    """The due time to plan from: ``stored``, or an earlier one, if ``stored`` was computed with
    other time zone tables than those of this process. The earlier one may have passed.

    ``last`` is the due time before, and ``since`` when the schedule began or went on. By the tables
    of ``stored`` there is no due time between these and ``stored``. What is nearer to ``last`` than
    to ``stored`` is ``last``, moved: it has been dealt with.
    """
    if not rule.depends_on_tables:
        return stored
    if stored is None:
        return _after_its_end(rule, now, last)
    begin = stored - MOST_MOVED
    if since is not None and since < stored:
        begin = max(begin, since)
    if last is not None and last < stored:
        begin = max(begin, last + (stored - last) / 2)
    ahead = rule.next(max(begin, now)) if now < stored else None
    if rule.next(stored - INSTANT) == stored and (ahead is None or ahead >= stored):
        return stored
    return min(rule.next(begin) or stored, stored)


def _after_its_end(rule: Rule, now: datetime, last: datetime | None) -> datetime | None:
    """The due time of a rule that had none left by other tables, up to its end."""
    if last is not None and rule.ends_at is not None:
        following = list(islice(replace(rule, ends_at=None).due_times(last), 2))
        if len(following) == 2 and following[0] - last < (following[1] - following[0]) / 2:
            now = max(now, following[0])  # it is ``last``, moved
    return rule.next(now)


def made_of(due: Sequence[datetime], fired: Iterable[datetime]) -> set[datetime]:
    """Those of the ascending due times that have been fired. What was fired at another time is the
    nearest of them, moved by other time zone tables."""
    moments = set(fired)
    made = moments.intersection(due)
    for moment in sorted(moments - made):
        place = bisect(due, moment)
        close = [at for at in due[max(place - 1, 0) : place + 1] if at not in made]
        nearest = min(close, key=lambda at: abs(at - moment), default=None)
        if nearest is not None and abs(nearest - moment) <= MOST_MOVED_OF_TICKS:
            made.add(nearest)
    return made


def _in_window(rule: Rule, first: datetime, now: datetime, seconds: float) -> Plan:
    begin, seconds = first, max(seconds, ON_TIME_SECONDS)
    late: list[datetime] = []
    more_missed = False
    if (now - first).total_seconds() > seconds:
        begin = now - timedelta(seconds=seconds)
        late, more_missed, _ = _newest(rule, first, begin - INSTANT, MOST_MISSED_TICKS)
    coming, next_due = _walk(rule, begin, now, MOST_AT_ONCE)
    fire = [at for at in coming if not rule.skips(at)]
    late += [at for at in coming if at not in fire]
    return Plan(fire=fire, late=late, more_missed=more_missed, next_due=next_due)


def _newest(
    rule: Rule, first: datetime, until: datetime, count: int
) -> tuple[list[datetime], bool, datetime | None]:
    """The newest ``count`` due times from ``first`` to ``until``, whether there are more, and the
    next one after ``until``.

    If there are many, it guesses where to begin from the distance of the first ones and then
    bisects, so that it does not visit each.
    """
    begin = many = first
    few = until
    guess: datetime | None = None
    while True:
        due_times, next_due = _walk(rule, begin, until, 2 * count)
        if next_due is not None and next_due <= until:
            many = begin
        elif begin > first and len(due_times) < count:
            few = begin
        else:
            return due_times[-count:], begin > first or len(due_times) > count, next_due
        begin = many + (few - many) / 2
        if guess is None:
            guess = until - (due_times[-1] - due_times[0]) * 0.75
            begin = max(guess, begin)


def _walk(
    rule: Rule, begin: datetime, until: datetime, most: int
) -> tuple[list[datetime], datetime | None]:
    """Up to ``most`` due times from ``begin`` to ``until``, and the next one after them."""
    due_times: list[datetime] = []
    for due in rule.due_times(begin - INSTANT):
        if due > until or len(due_times) == most:
            return due_times, due
        due_times.append(due)
    return due_times, None
