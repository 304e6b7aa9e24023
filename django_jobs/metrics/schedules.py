"""A snapshot of the schedules: how many are in each state, and how late they are."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.policies import ON_TIME_SECONDS
from ..lifecycle.backlog import MOST_COUNTED
from ..models.database import fetch, fetch_named
from ..models.querysets import ScheduleState
from ..models.worker import IS_ALIVE

MAX_LAG = ON_TIME_SECONDS
"""Seconds that schedules may be overdue, or not looked at, before that is a problem."""

# By the rules of state_at() of the models.
STATES = f"""
SELECT state, count(one.found) AS schedules
FROM unnest(ARRAY[{", ".join(f"'{state}'" for state in ScheduleState)}]) AS state
LEFT JOIN (
    SELECT CASE WHEN error <> '' THEN 'error' WHEN NOT enabled THEN 'disabled'
        WHEN paused_at IS NOT NULL THEN 'paused' WHEN stale THEN 'on'
        WHEN next_due_at IS NULL THEN 'ended'
        WHEN next_due_at < clock_timestamp() - interval '{ON_TIME_SECONDS} s' THEN 'overdue'
        ELSE 'on' END AS found
    FROM (SELECT * FROM django_jobs_schedule ORDER BY id LIMIT %(most)s) AS first
) AS one ON one.found = state GROUP BY 1
"""
# The schedule that has been due longest is the head of its index, however many there are; those
# without a next due time come behind it. Workers write a look with their heartbeat, so a worker
# that has just started may have looked and not written it.
LAG = f"""
SELECT
    (SELECT head.name FROM django_jobs_schedule AS head
     WHERE head.enabled AND head.paused_at IS NULL AND head.error = '' AND NOT head.stale
       AND head.next_due_at <= clock_timestamp()
     ORDER BY head.next_due_at LIMIT 1) AS most_overdue,
    (SELECT CASE WHEN min(next_due_at) IS NOT NULL
            THEN least(greatest(date_part('epoch', clock_timestamp())
                - date_part('epoch', min(next_due_at)), 0), 1e9) END
     FROM django_jobs_schedule
     WHERE enabled AND paused_at IS NULL AND error = '' AND NOT stale) AS overdue_seconds,
    (SELECT extract(epoch FROM clock_timestamp() - max(schedules_seen_at))::float8
     FROM django_jobs_worker WHERE status IN ('running', 'draining')) AS seen_seconds,
    (SELECT extract(epoch FROM clock_timestamp() - greatest(
        max(schedules_seen_at),
        min(started_at) FILTER (WHERE {IS_ALIVE})))::float8
     FROM django_jobs_worker AS worker WHERE status IN ('running', 'draining')) AS unseen_seconds
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesSnapshot:
    """All schedules. The first fields count those in each
    :class:`~django_jobs.models.querysets.ScheduleState`, among the first 100,000.

    ``most_overdue`` is the name of the schedule that has been due longest, and ``overdue_seconds``
    for how long: 0 while none is due, None if none has a next due time. A schedule counts as
    ``overdue`` after 60 s. ``seen_seconds`` is how long ago a worker looked at the schedules, by
    its last heartbeat; None if no living worker has. ``unseen_seconds`` is for how long no worker
    looked although one could: since that look, or since the longest-living worker started,
    whichever is later; None while no worker lives.
    """

    on: int = 0
    overdue: int = 0
    paused: int = 0
    error: int = 0
    disabled: int = 0
    ended: int = 0
    overdue_seconds: float | None = None
    most_overdue: str | None = None
    seen_seconds: float | None = None
    unseen_seconds: float | None = None

    @property
    def lag_seconds(self) -> float:
        """How long a schedule is overdue or no worker looked, if longer; 0 without schedules."""
        if not (self.on or self.overdue):
            return 0.0
        return max(self.overdue_seconds or 0.0, self.unseen_seconds or 0.0)


def take_schedules() -> SchedulesSnapshot:
    """The state of all schedules, in two statements."""
    (row,) = fetch_named(LAG, {})
    return SchedulesSnapshot(**row, **dict(fetch(STATES, {"most": MOST_COUNTED})))


def problem_of_schedules(schedules: SchedulesSnapshot, max_lag: float) -> str | None:
    """Why schedules do not fire, or fire late; None if they fire."""
    if schedules.error:
        return f"schedules with an error: {schedules.error}"
    if not (schedules.on or schedules.overdue):
        return None
    if schedules.unseen_seconds is not None and schedules.unseen_seconds > max_lag:
        if schedules.seen_seconds is None:
            return "no worker looks at schedules"
        return f"no worker has looked at schedules for {schedules.seen_seconds:.0f} s"
    if schedules.overdue_seconds is not None and schedules.overdue_seconds > max_lag:
        late = f"{schedules.overdue_seconds:.0f} s"
        return f"the schedule {schedules.most_overdue!r} is overdue by {late}"
    return None
