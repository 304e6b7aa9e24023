"""The service level objectives of queues: how many jobs started in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..lifecycle.run_totals import HOUR, MINUTE
from ..models.database import fetch_named
from ..models.queue import slo_began

MOST_LATE = 10_000
"""Ready jobs of each queue, and due ones of all, that are examined. A number that reaches it means
"at least"."""

BURNING = 1.0
"""A burn rate at which the error budget does not last."""
FEWEST_RUNS = 20
"""Runs below which no alert is sent of it: one late job of a few burns any budget."""

# The jobs that are late stand at the head of the queue, unless priorities differ. Scheduled ones
# are late too, if no worker has made them ready.
OBJECTIVES = f"""
WITH counted AS MATERIALIZED (
    SELECT queue, period, sum(slo_runs)::bigint AS runs, sum(slo_met)::bigint AS met
    FROM django_jobs_runtotal
    WHERE EXISTS (SELECT FROM django_jobs_queue WHERE slo_seconds IS NOT NULL)
      AND (period = {MINUTE}
           AND began_at >= date_bin('1 minute', now() - interval '1 hour', 'epoch')
           OR period = {HOUR}
           AND began_at >= date_bin('1 hour', now() - interval '1 day', 'epoch'))
    GROUP BY queue, period
), overdue AS MATERIALIZED (
    SELECT queue, available_at FROM django_jobs_job_live
    WHERE status = 'scheduled' AND available_at < statement_timestamp()
    ORDER BY available_at LIMIT %(most)s
)
SELECT queue.name AS queue, queue.slo_seconds AS seconds, queue.slo_since AS since,
    queue.slo_target AS target,
    (SELECT count(*) FROM (
        SELECT job.available_at, job.ready_at FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT %(most)s) AS head
     WHERE {slo_began("head.available_at", "head.ready_at")}
        < now() - make_interval(secs => queue.slo_seconds))
    + (SELECT count(*) FROM overdue WHERE overdue.queue = queue.name
       AND overdue.available_at < now() - make_interval(secs => queue.slo_seconds)) AS late,
    coalesce(hour.runs, 0) AS hour_runs, coalesce(hour.met, 0) AS hour_met,
    coalesce(day.runs, 0) AS day_runs, coalesce(day.met, 0) AS day_met
FROM django_jobs_queue AS queue
LEFT JOIN counted AS hour ON hour.queue = queue.name AND hour.period = {MINUTE}
LEFT JOIN counted AS day ON day.queue = queue.name AND day.period = {HOUR}
WHERE queue.slo_seconds IS NOT NULL
ORDER BY queue.name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloWindow:
    """A time in which ``runs`` attempts started, or are late and still wait, and ``met`` started in
    time. ``ratio`` is met / runs; None without runs. ``burn_rate`` is how fast the error budget is
    used up: at 1 it lasts exactly as long as the objective allows."""

    runs: int
    met: int
    ratio: float | None
    burn_rate: float | None

    @classmethod
    def of(cls, runs: int, met: int, late: int, target: float) -> SloWindow:
        """With ``late`` jobs that have not started."""
        runs += late
        ratio = met / runs if runs else None
        burn_rate = None if ratio is None else (1 - ratio) / (1 - target)
        return cls(runs=runs, met=met, ratio=ratio, burn_rate=burn_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSnapshot:
    """The objective of one queue: a share of ``target`` of its jobs starts within ``seconds`` after
    they are ``due``, or ``ready``. ``late`` jobs have not started and should have; the count stops
    at 10,000 ready ones, and as many that are due and not ready yet."""

    queue: str
    seconds: float
    since: str
    target: float
    late: int
    hour: SloWindow
    day: SloWindow

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SloSnapshot:
        """Of a row of ``OBJECTIVES``."""
        hour, day = (
            SloWindow.of(row[f"{name}_runs"], row[f"{name}_met"], row["late"], row["target"])
            for name in ("hour", "day")
        )
        names = ("queue", "seconds", "since", "target", "late")
        return cls(**{name: row[name] for name in names}, hour=hour, day=day)


def take_objectives() -> tuple[SloSnapshot, ...]:
    """The objectives of all queues that have one, with the last hour and the last day."""
    return tuple(map(SloSnapshot.of, fetch_named(OBJECTIVES, {"most": MOST_LATE})))
