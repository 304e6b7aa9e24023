"""The entries of ``beat_schedule`` are declared schedules."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("celery")

from celery.schedules import crontab, schedule

from django_jobs import registry
from tests.contrib.celery.project import celery_app, tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("project")]


class Lunar(schedule):  # type: ignore[misc]
    """A kind of schedule that a project has made."""


def test_crontabs_and_intervals_become_schedules(caplog: pytest.LogCaptureFixture) -> None:
    from django_jobs.contrib.celery.beat.declared import declare

    name = tasks.add.name
    celery_app.conf.beat_schedule = {
        "monday": {
            "task": name,
            "schedule": crontab(minute="30", hour="6", day_of_week="mon"),
            "args": (1,),
            "kwargs": {"y": 2},
            "options": {"queue": "emails"},
        },
        "often": {"task": name, "schedule": timedelta(minutes=5), "args": (1,)},
        "number": {"task": name, "schedule": 60.0, "args": (1,)},
        "moon": {"task": name, "schedule": Lunar(60), "args": (1,)},
        "gone": {"task": "gone", "schedule": 60},
    }
    declare(celery_app)
    declared = registry.schedules()
    for one in ("monday", "often", "number"):
        registry.forget_schedule(one)
    celery_app.conf.beat_schedule = {}
    assert declared["monday"]["payload"] == {"x": 1, "y": 2}
    assert (declared["monday"]["cron"], declared["monday"]["queue"]) == ("30 6 * * 1", "emails")
    assert (declared["often"]["every"], declared["number"]["every"]) == (300, 60)
    assert not {"moon", "gone"} & declared.keys()
    assert "a Lunar is neither a crontab nor an interval" in caplog.text
    assert "no job type is named 'gone'" in caplog.text
