"""Fills the tables of django-celery-beat with its own model classes, as its users do.

Runs in a process of its own: ``python -m tests.contrib.celery.beat_project``. Prints as JSON what
Celery makes of each crontab (the values of its fields by the name of the task), and when it runs
some of them while the clock changes in Paris.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import django

FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
ANY = ("*", "*", "*", "*", "*")

CRONTABS = {
    "all stars": ANY,
    "every 15": ("*/15", "*", "*", "*", "*"),
    "names": ("30", "6", "*", "jan,Jul-sep", "monday,Wed,fri"),
    "round the week": ("0", "12", "*", "*", "fri-mon"),
    "round the clock": ("5", "22-3", "*", "*", "*"),
    "round with a step": ("0", "0", "*", "*", "fri-mon/2"),
    "every second weekday": ("0", "0", "*", "*", "*/2"),
    "every second day": ("0", "0", "*/2", "*", "*"),
    "one of a step": ("*/90", "*/13", "*", "*", "*"),
    "a range of one": ("5-5", "1", "*", "*", "*"),
    "first monday": ("0", "9", "1-7", "*", "1"),
    "third weekend": ("0", "9", "15-21", "3-5", "sat,sun"),
    "all days and fridays": ("0", "0", "1-31", "*", "5"),
    "leap day": ("0", "0", "29", "2", "*"),
    "spaces": ("0, 30", "8, 20", "*", "*", "1, 5"),
}
IN_PARIS = (("30", "2", "*", "*", "*"), ("*/15", "*", "*", "*", "*"))
CHANGES = (datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 30, 23, 50, tzinfo=UTC))
HOURS = 3
"""Of which the change is somewhere in the middle."""

PIECES = {
    "minute": ("0", "7,8,9,50", "*/20", "10-30/7", "50-10", "*/7,1", "3-5,9"),
    "hour": ("*", "0", "*/5", "8-18", "20-4/3", "1,2,3,23"),
    "day_of_month": ("*", "1", "*/3", "25-5", "1,15,31", "5-20/4"),
    "month_of_year": ("*", "2", "*/5", "nov-feb", "1,4,7,10", "3-11/4"),
    "day_of_week": ("*", "0", "1-5", "sat-tue", "*/3", "2,4", "sunday"),
}


def crontabs() -> dict[str, tuple[str, ...]]:
    """Those above, and some that were put together by chance, with one day field at most."""
    chance = random.Random(4)
    found = dict(CRONTABS)
    for number in range(40):
        drawn = {field: chance.choice(PIECES[field]) for field in FIELDS}
        drawn[chance.choice(("day_of_month", "day_of_week"))] = "*"
        found[f"chance {number}"] = tuple(drawn[field] for field in FIELDS)
    return found


def runs_in_paris(fields: tuple[str, ...]) -> list[str]:
    """When Celery, looking every minute, runs a crontab around the two changes of 2027."""
    from celery import Celery
    from django_celery_beat.tzcrontab import TzAwareCrontab

    class Crontab(TzAwareCrontab):
        def nowfunc(self) -> datetime:
            return moment.astimezone(self.tz)

    paris, found = ZoneInfo("Europe/Paris"), []
    crontab = Crontab(**dict(zip(FIELDS, fields, strict=True)), tz=paris, app=Celery())
    for begin in CHANGES:
        last = begin
        for minute in range(1, HOURS * 60):
            moment = begin + timedelta(minutes=minute)
            if crontab.is_due(last)[0]:
                last = moment
                found.append(f"{moment.astimezone(paris):%d %H:%M %Z}")
    return found


def fill() -> None:
    """One periodic task for each thing that may be met."""
    from django_celery_beat.models import (
        ClockedSchedule,
        CrontabSchedule,
        IntervalSchedule,
        PeriodicTask,
        SolarSchedule,
    )

    def crontab(fields: tuple[str, ...] = ANY, timezone: str = "UTC") -> Any:
        values = dict(zip(FIELDS, fields, strict=True))
        return CrontabSchedule.objects.get_or_create(**values, timezone=timezone)[0]

    def interval(every: int, period: str) -> Any:
        return IntervalSchedule.objects.create(every=every, period=period)

    def task(name: str, task: str = "proj.tasks.noop", **fields: Any) -> None:
        if not fields.keys() & {"crontab", "interval", "solar", "clocked"}:
            fields["crontab"] = crontab(("30", "2", "*", "*", "*"), "Europe/Paris")
        PeriodicTask.objects.create(name=name, task=task, **fields)

    for name, fields in crontabs().items():
        task(f"cron {name}", crontab=crontab(fields))
    days_by_crontab = {}
    for row in PeriodicTask.objects.select_related("crontab"):
        schedule = row.crontab.schedule
        days_by_crontab[row.name] = {field: sorted(getattr(schedule, field)) for field in FIELDS}
    changes = {" ".join(fields): runs_in_paris(fields) for fields in IN_PARIS}
    print(json.dumps({"crontabs": days_by_crontab, "changes": changes}))

    moment = datetime(2099, 5, 1, 12, tzinfo=UTC)
    task("nightly in Paris", description="What it is for.")
    task("every 90 minutes", interval=interval(90, "minutes"))
    task("ran before", interval=interval(1, "days"))
    PeriodicTask.objects.filter(name="ran before").update(
        last_run_at=datetime(2026, 5, 1, 14, 3, 7, 123456, tzinfo=UTC)
    )
    task("too often", interval=interval(5, "microseconds"))
    task("from and until", start_time=moment, expires=datetime(2099, 12, 1, tzinfo=UTC))
    task("by position", "proj.tasks.add", args="[1]", kwargs='{"second": 2}')
    task("too many arguments", "proj.tasks.add", args="[1, 2, 3]")
    task("no JSON", "proj.tasks.add", args="[1")
    task("a date of Celery", "proj.tasks.add", args='[{"__type__": "date", "__value__": "x"}]')
    task("disabled", enabled=False)
    task("once", one_off=True)
    task("at a time", clocked=ClockedSchedule.objects.create(clocked_time=moment), one_off=True)
    sun = SolarSchedule.objects.create(event="sunrise", latitude=48, longitude=2)
    task("by the sun", solar=sun)
    task("both days", crontab=crontab(("0", "0", "13", "*", "5")))
    task("in bulk", queue="bulk")
    task("in a queue of Celery", queue="celery")
    task("first", priority=9)
    task("far above", priority=200)
    task("expiring", expire_seconds=60, headers='{"a": 1}', routing_key="somewhere")
    task("nobody's", "proj.tasks.unheard_of")
    task("mapped", "proj.tasks.renamed")
    task("celery.backend_cleanup", "celery.backend_cleanup")


if __name__ == "__main__":
    django.setup()
    fill()
