"""How soon after its due time a schedule's job starts: one schedule, and many of one second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_jobs.lifecycle.operations.schedules import changed
from django_jobs.lifecycle.schedules.firing import ADVANCE, INSERT_JOBS, INSERT_TICKS
from django_jobs.maintenance.schedules import BATCH
from django_jobs.models import Schedule
from tests.app.jobs import noop

from . import raw
from .database import empty, execute, fetch, settle_down, until
from .measuring import Figure, percentile, repeat, turns
from .workers import running_worker

DAY = 86_400.0
AHEAD = timedelta(seconds=3)

STARTED = """
SELECT extract(epoch FROM run.started_at - job.scheduled_for)::float8,
       extract(epoch FROM job.created_at - job.scheduled_for)::float8
FROM django_jobs_job AS job JOIN django_jobs_run AS run ON run.job_id = job.id
ORDER BY job.id
"""
RUNS = "SELECT count(*) FROM django_jobs_run"


def schedules(times: int, scale: float) -> list[Figure]:
    """A schedule that is due each second, and 5,000 that are due in the same second. The raw
    partners: a sleep and a SELECT, and the same rows written by plain psycopg."""
    alone, count = max(int(60 * scale), 5), int(5_000 * scale)
    late, raw_late = repeat(
        times,
        lambda: percentile(_each_second(alone), 0.95) * 1_000,
        lambda: percentile(raw.late(alone), 0.95) * 1_000,
    )
    made, started, raw_made = [], [], []
    for _ in turns(times):
        waits = _in_one_second(count)
        started.append(max(wait for wait, _ in waits) * 1_000)
        made.append(max(wait for _, wait in waits) * 1_000)
        raw_made.append(_raw(count) * 1_000)
    _forget_schedules()
    partner = "plain psycopg, the same rows"
    return [
        Figure("a schedule of each second, start p95", "ms", late, raw_late,
               "a sleep and a SELECT", "less", "100 ms"),
        Figure(f"{count:,} schedules due at once, last job made", "ms", made, raw_made,
               partner, "less", "2,000 ms"),
        Figure(f"{count:,} schedules due at once, last start", "ms", started, raw_made,
               partner, "less", "2,000 ms"),
    ]  # fmt: skip


def _each_second(count: int) -> list[float]:
    _forget_schedules()
    Schedule.objects.create(name="each second", job_type=noop.name, every=1.0, overlap="allow")
    with running_worker("--poll-seconds", "5"):
        until(lambda: fetch(RUNS)[0][0] > count)
    # The first is caught up with at the boot, whenever that is.
    return [started for started, _ in fetch(STARTED)][1 : count + 1]


def _in_one_second(count: int) -> list[tuple[float, float]]:
    """(seconds to the start, seconds to the row) of each job."""
    _forget_schedules()
    with running_worker("--poll-seconds", "5"):
        due = timezone.now() + AHEAD
        _write_schedules(count, due)
        changed()
        if timezone.now() > due - timedelta(seconds=0.5):
            raise RuntimeError("the schedules were not written in time")
        until(lambda: fetch(RUNS)[0][0] >= count)
    found = [(started, made) for started, made in fetch(STARTED)]
    if len(found) != count or min(made for _, made in found) < 0:
        raise RuntimeError("a schedule was fired too early, or not once")
    return found


def _write_schedules(count: int, due: datetime) -> None:
    Schedule.objects.bulk_create(
        Schedule(
            name=f"schedule {number}",
            job_type=noop.name,
            every=DAY,
            starts_at=due,
            next_due_at=due,
            stale=False,
        )
        for number in range(count)
    )


def _raw(count: int) -> float:
    """Seconds for the ticks, the jobs and the next due times, as many a transaction as a worker
    writes; what they say is made up before."""
    _forget_schedules()
    due = timezone.now()
    _write_schedules(count, due)
    settle_down("django_jobs_schedule")
    ids = list(Schedule.objects.order_by("id").values_list("id", flat=True))
    written = [_parameters(ids[at : at + BATCH], due) for at in range(0, count, BATCH)]
    with raw.connect() as connection:
        begun = time.perf_counter()
        for ticks, jobs, moves in written:
            with connection.transaction():
                made = connection.execute(INSERT_TICKS, {"ticks": json.dumps(ticks)}).fetchall()
                for job, (_, _, id_) in zip(jobs, made, strict=True):
                    job["job"]["id"] = id_
                connection.execute(INSERT_JOBS, {"jobs": json.dumps(jobs)})
                connection.execute(ADVANCE, {"rows": moves})
        return time.perf_counter() - begun


def _parameters(
    ids: Iterable[int], due: datetime
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    at = due.isoformat()
    new = noop.request()
    columns = {**new.columns, **dict(new.decoded()), "payload": {}, "scheduled_for": at}
    others = {"weight": new.weight, "max_age": None, "delay": 0.0, "waits": False}
    ticks, jobs, moves = [], [], []
    for id_ in ids:
        ticks.append(
            {"schedule": id_, "due": at, "outcome": "fired", "reason": "", "backfill": None}
        )
        key = f"schedule/{id_}/{at}"
        jobs.append({"job": {**columns, "idempotency_key": key, "schedule_id": id_}, **others})
        moves.append({"schedule": id_, "next_due": at, "last_due": at, "made": 1})
    return ticks, jobs, json.dumps(moves)


def _forget_schedules() -> None:
    empty()
    execute(
        "TRUNCATE django_jobs_schedule, django_jobs_tick, django_jobs_backfill,"
        " django_jobs_scheduleexception"
    )
