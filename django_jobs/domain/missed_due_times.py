"""What happens to the due times of a schedule, above all to those that no worker saw in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from .schedules import INSTANT, ON_TIME_SECONDS, CatchUp, Rule, in_utc

MOST_AT_ONCE = 100
"""Jobs that a schedule makes at one time, at most, by any policy."""

LIMITS = {CatchUp.AT_MOST: (1, MOST_AT_ONCE), CatchUp.WINDOW: (ON_TIME_SECONDS, inf)}
"""The least and the most that the ``limit`` of a policy may be: jobs, and seconds."""

MOST_MISSED_TICKS = 25
"""Missed due times that get separate ticks when a schedule is planned. The others share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do about the due times of a schedule.

    ``fire`` make jobs and ``late`` were missed, each ascending. ``more_missed``: others were missed
    that are in neither. ``next_due`` may be in the past; the next plan begins there.
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
    missed, more_missed, next_due = _newest(rule, first, now, count + MOST_MISSED_TICKS)
    fire, late = missed[-count:], missed[:-count]
    if catch_up == CatchUp.SKIP and fire and (now - fire[-1]).total_seconds() > ON_TIME_SECONDS:
        fire, late = [], missed
    return Plan(fire=fire, late=late, more_missed=more_missed, next_due=next_due)


def _in_window(rule: Rule, first: datetime, now: datetime, seconds: float) -> Plan:
    begin, seconds = first, max(seconds, ON_TIME_SECONDS)
    late: list[datetime] = []
    more_missed = False
    if (now - first).total_seconds() > seconds:
        begin = now - timedelta(seconds=seconds)
        late, more_missed, _ = _newest(rule, first, begin - INSTANT, MOST_MISSED_TICKS)
    fire, next_due = _walk(rule, begin, now, MOST_AT_ONCE)
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
