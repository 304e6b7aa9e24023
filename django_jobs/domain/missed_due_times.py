"""What happens to the due times of a schedule, above all to those that no worker saw in time."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from math import inf

from .schedules import INSTANT, ON_TIME_SECONDS, CatchUp, Rule, in_utc

MOST_AT_ONCE = 100
"""Jobs that a schedule makes at one time, at most, by any policy."""

LIMITS = {CatchUp.AT_MOST: (1, MOST_AT_ONCE), CatchUp.WINDOW: (ON_TIME_SECONDS, inf)}
"""The least and the most that the ``limit`` of a policy may be: jobs, and seconds."""

MOST_MISSED_TICKS = 25
"""Missed due times that get separate ticks when a schedule is planned. The others share one."""


MOST_MOVED = timedelta(hours=12)
"""How far back to look for a due time that is earlier by other time zone tables. They have moved
clocks by up to three hours, and by a day where the date line moved. In half a day a daily rule that
was edited since has no due time of before."""

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
