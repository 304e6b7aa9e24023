"""Schedules as the tests of the console make them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from enum import Enum
from typing import Any, Literal

from django.urls import reverse

from django_jobs import registry
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Schedule
from tests.factories import declared

EVIL = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'><b style=x>"


class Colour(Enum):
    """What is chosen among."""

    RED = "r"
    GREEN = "g"


def report(
    customer: int,
    kind: Literal["draft", "final"] = "draft",
    day: date | None = None,
    share: float = 0.5,
    loud: bool = True,
    note: str = "none given",
    api_key: str = "",
    colour: Colour = Colour.RED,
    parts: list[int] | None = None,
) -> None:
    """Tell a customer how things stand.

    Not shown.
    """


def collect(where: str, **more: Any) -> None:
    """Take whatever is given."""


# That it has no annotations is what the form is tested with.
def count_up(step) -> None:  # type: ignore[no-untyped-def]
    """Has no annotations."""


@contextmanager
def schedulable() -> Iterator[None]:
    """Three job types that may be chosen in the admin, inside the block only."""
    with (
        declared(report, name="app.report", schedulable=True, queue="bulk"),
        declared(collect, name="app.collect", schedulable=True),
        declared(count_up, name="app.count_up", schedulable=True),
    ):
        yield


def new_schedule(**fields: Any) -> Schedule:
    """A schedule of every hour that workers have looked at."""
    values = {"name": "hourly", "job_type": "app.noop", "every": 3600.0, **fields}
    schedule = Schedule.objects.create(**values)
    Scheduling().look()
    schedule.refresh_from_db()
    return schedule


@contextmanager
def in_code(name: str, **fields: Any) -> Iterator[Schedule]:
    """A schedule that the code declares, inside the block only."""
    registry.register_schedule(name, {"job_type": "app.noop"})
    try:
        yield new_schedule(name=name, declared=True, **fields)
    finally:
        registry.forget_schedule(name)


def add_url(job_type: str = "app.report", **more: Any) -> str:
    """The add form of a job type."""
    query = "&".join(f"{key}={value}" for key, value in more.items())
    return reverse("admin:django_jobs_schedule_add") + f"?job_type={job_type}&{query}"


def backfill_url(schedule: Schedule) -> str:
    """The form for a backfill."""
    return reverse("admin:django_jobs_schedule_backfill", args=[schedule.pk])


def filled_in(**values: Any) -> dict[str, Any]:
    """The form of a schedule as a browser sends it."""
    return {
        "name": "nightly",
        "cron": "30 2 * * *",
        "every": "",
        "timezone": "Europe/Paris",
        "dst": "once",
        "starts_at_0": "",
        "starts_at_1": "",
        "ends_at_0": "",
        "ends_at_1": "",
        "enabled": "on",
        "queue": "",
        "priority": "",
        "jitter_seconds": "0",
        "overlap": "skip",
        "overlap_limit": "",
        "catch_up": "latest",
        "catch_up_limit": "",
        "pause_after_dead": "",
        **values,
    }
