"""Schedules of each second, and waiting until they fire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psutil

from django_jobs.models import Schedule, Tick, Worker
from tests.factories import run_sql

from .processes import JobWorker, until


def database_time() -> datetime:
    ((now,),) = run_sql("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def each_second(name: str = "healthy", **fields: Any) -> Schedule:
    fields = {"job_type": "app.noop", "every": 1.0, "overlap": "allow", **fields}
    return Schedule.objects.create(name=name, **fields)


def fired(schedule: Schedule, after: datetime | None = None) -> int:
    ticks = Tick.objects.filter(schedule=schedule, outcome="fired")
    return (ticks if after is None else ticks.filter(due_at__gt=after)).count()


def until_fired(schedule: Schedule, times: int = 2, after: datetime | None = None) -> None:
    until(lambda: fired(schedule, after) >= times, what=f"{schedule} fired {times} times")


def until_fires_on(schedule: Schedule) -> None:
    until_fired(schedule, times=2, after=database_time())


def until_armed(*schedules: Schedule) -> None:
    rows = Schedule.objects.filter(pk__in=[schedule.pk for schedule in schedules])
    until(lambda: not rows.filter(stale=True).exists(), what="the next due times are computed")


def heartbeat_process(worker: JobWorker) -> psutil.Process:
    row = until(lambda: Worker.objects.filter(status="running").order_by("-started_at").first())
    (heart,) = [child for child in worker.children() if child.pid != row.pid]
    return heart
