"""Counts and times of attempts, read from the table of totals by the sums that a scrape reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_jobs.domain.histograms import BUCKETS, Histogram
from django_jobs.lifecycle.run_totals import (
    ALL_TIMES,
    HOUR,
    MINUTE,
    MINUTES_KEPT,
    SINCE_THE_BEGINNING,
)
from django_jobs.metrics.totals import SUMS
from django_jobs.models.database import fetch, fetch_named

READ = f"""
{SUMS}
FROM django_jobs_runtotal
WHERE period = %(period)s AND began_at >= %(since)s::timestamptz
GROUP BY queue, job_type
ORDER BY queue, job_type
"""
COVERED = """
SELECT date_bin(make_interval(secs => %(period)s),
        statement_timestamp() - make_interval(secs => %(seconds)s::float8), 'epoch'),
    (SELECT reached_at FROM django_jobs_runwatermark WHERE id = 1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTotals:
    """The attempts of one job type that ended in one queue. Both names are empty for runs whose job
    was deleted before they were counted.

    ``waiting`` is from the due time to the claim, and ``gate`` its part at gates or in a
    quarantine, of the attempts that had one; ``start_lag`` is from the claim to the start, and
    ``runtime`` from there to the end. ``slo_runs`` are those of queues with an objective, and
    ``slo_met`` those that started in time. ``retries`` were not the first attempt of their job.
    ``died`` ended a job as dead that was dead when they were counted. ``prevented`` are calls that
    ``run.once`` did not repeat, of jobs that succeeded or were cancelled.
    """

    queue: str
    job_type: str
    outcomes: Mapping[str, int]
    slo_runs: int
    slo_met: int
    retries: int
    died: int
    prevented: int
    waiting: Histogram
    gate: Histogram
    start_lag: Histogram
    runtime: Histogram

    @property
    def runs(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals from ``since``, or if that is None from the beginning, up to ``reached_at``, which
    is some seconds ago; None if no worker has counted any."""

    since: datetime | None
    reached_at: datetime | None
    types: tuple[TypeTotals, ...]

    @property
    def seconds(self) -> float | None:
        """How long a time they cover; None from the beginning."""
        if self.since is None or self.reached_at is None:
            return None
        return max((self.reached_at - self.since).total_seconds(), 0.0)


def take_totals() -> Totals:
    """All attempts since the beginning."""
    ((_, reached_at),) = fetch(COVERED, {"period": MINUTE, "seconds": 0})
    return Totals(since=None, reached_at=reached_at, types=_read(SINCE_THE_BEGINNING, None))


def take_recent(seconds: float) -> Totals:
    """The attempts of the last ``seconds``, in whole minutes, or hours if it is more than three
    hours. The first of them is counted as a whole."""
    period = MINUTE if seconds <= MINUTES_KEPT else HOUR
    ((since, reached_at),) = fetch(COVERED, {"period": period, "seconds": seconds})
    return Totals(since=since, reached_at=reached_at, types=_read(period, since))


def _read(period: int, since: datetime | None) -> tuple[TypeTotals, ...]:
    parameters = {"period": period, "since": since or "-infinity"}
    return tuple(map(_totals, fetch_named(READ, parameters)))


def _totals(row: dict[str, Any]) -> TypeTotals:
    for time in ALL_TIMES:
        counts, seconds = row[time] or ([0] * BUCKETS, 0.0)
        row[time] = Histogram(tuple(counts), seconds)
    row["outcomes"] = {outcome: runs for outcome, runs in row["outcomes"].items() if runs}
    return TypeTotals(**row)
