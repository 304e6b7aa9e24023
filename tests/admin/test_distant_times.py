"""Pages and lists stay up whatever times stand in rows, and show what PostgreSQL has."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.test import override_settings
from django.utils import timezone

from django_jobs.lifecycle.operations import quarantines
from django_jobs.models import (
    Backfill,
    DeadLetter,
    Job,
    Quarantine,
    Queue,
    Run,
    Schedule,
    Tick,
    Worker,
)
from django_jobs.models.fields import TimestampField
from tests.app.jobs import noop
from tests.factories import due_schedule, look, make_dead, run_sql

from .walking import Page, change_url, list_url

pytestmark = pytest.mark.django_db

MODELS = (Job, DeadLetter, Run, Worker, Queue, Schedule, Tick, Backfill, Quarantine)


def one_of_each() -> None:
    make_dead()
    noop.enqueue()
    noop.using(delay=60).enqueue()
    schedule = due_schedule()
    look()
    Backfill.objects.create(
        schedule=schedule, begins_at=timezone.now(), ends_at=timezone.now(), requested_by="ada"
    )
    quarantines.quarantine("app.add", reason="why not")


def set_all_times(text: str) -> None:
    for model in MODELS:
        columns = [
            field.column for field in model._meta.concrete_fields
            if isinstance(field, TimestampField)
        ]  # fmt: skip
        values = ", ".join(f"{column} = %s" for column in columns)
        run_sql(f"UPDATE {model._meta.db_table} SET {values}", [text] * len(columns))


@pytest.mark.parametrize(
    "text, zone",
    [
        ("infinity", "UTC"),
        ("-infinity", "UTC"),
        ("20000-01-01 00:00:00+00", "UTC"),
        ("0044-03-15 00:00:00+00 BC", "UTC"),
        ("9999-12-31 23:59:59+00", "Europe/Berlin"),
        ("0001-01-01 00:00:00+00", "America/New_York"),
    ],
)
def test_a_time_out_of_reach_is_shown(page: Page, text: str, zone: str) -> None:
    one_of_each()
    set_all_times(text)
    with override_settings(TIME_ZONE=zone):
        for model in MODELS:
            rows = list(model._default_manager.all())
            assert rows, model
            texts = [page.text(list_url(model))]
            texts += [page.text(change_url(model, row.pk)) for row in rows]
            assert all(text[:10] in shown for shown in texts[1:]), model


@pytest.mark.parametrize("text", ["infinity", "9999-12-31 23:59:59.999999+00"])
def test_a_schedule_that_ends_out_of_reach_has_a_page(page: Page, text: str) -> None:
    schedule = due_schedule()
    run_sql("UPDATE django_jobs_schedule SET ends_at = %s", [text])
    assert "within 365 days, and ends later." in page.text(change_url(Schedule, schedule.pk))


@pytest.mark.parametrize("text", ["infinity", "-infinity"])
def test_the_commands_for_operators_answer_too(text: str) -> None:
    one_of_each()
    set_all_times(text)
    shown = {
        "jobstatus": "default",
        "jobstatus --json": '"queues"',
        "jobschedule list": "tick  every 1 h",
    }
    for command, expected in shown.items():
        out = StringIO()
        call_command(*command.split(), stdout=out)
        assert expected in out.getvalue(), command
