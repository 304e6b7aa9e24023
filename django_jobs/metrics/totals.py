"""Counts and times of all attempts, by queue and job type, from the table of totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..domain.histograms import BUCKETS, Histogram
from ..domain.states import RunState
from ..lifecycle.run_totals import ALL_TIMES, HOUR, MINUTE, MINUTES_KEPT, SINCE_THE_BEGINNING
from ..models.database import fetch, fetch_named


def _list(*values: str) -> str:
    return f"translate(ARRAY[{', '.join(values)}]::text, '{{}}', '[]')::json"


def _runs(outcome: RunState) -> str:
    return f"'{outcome}', coalesce(sum(runs) FILTER (WHERE outcome = '{outcome}'), 0)"


def _histogram(time: str) -> str:
    # The sum of bigints is a numeric, which takes twice as long. Floats are exact up to 9e15.
    places = (f"sum({time}_buckets[{place}]::float8)" for place in range(1, BUCKETS + 1))
    made = f"json_build_array({_list(*places)}, sum({time}_seconds))"
    if time == "gate":  # most types have none, and no samples of it
        made = f"CASE WHEN sum(gate_seconds) > 0 THEN {made} END"
    return f"{made} AS {time}"


# Lists in JSON, which Python reads faster than arrays. PostgreSQL makes them faster by way of the
# text of an array: 7 instead of 9 ms for 200 pairs.
SUMS = f"""
SELECT queue, job_type, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(slo_runs)::bigint AS slo_runs, sum(slo_met)::bigint AS slo_met,
    sum(retries)::bigint AS retries, sum(died)::bigint AS died,
    sum(prevented)::bigint AS prevented, {", ".join(map(_histogram, ALL_TIMES))}
"""
SUMS_OF_RESOURCES = f"""
SELECT resource, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(throttled)::bigint AS throttled, sum(server_errors)::bigint AS server_errors,
    {_histogram("runtime")}
"""
SUMS_OF_TENANTS = f"""
SELECT tenant, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(slo_runs)::bigint AS slo_runs, sum(slo_met)::bigint AS slo_met,
    {_histogram("waiting")}, {_histogram("runtime")}
FROM django_jobs_tenanttotal
"""
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
