"""Schedules that do not fire, or not as the code declares them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command

from django_jobs import move_occurrence, registry, schedule
from django_jobs.doctor.schedules import (
    examine_declarations,
    examine_due_times,
    examine_schedules,
)
from django_jobs.lifecycle import workers
from django_jobs.models import Schedule, ScheduleException
from tests.app.jobs import add, noop
from tests.factories import due_schedule, look, register_worker, run_sql

from .finding import diagnosis_of, findings

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_else_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_schedules", {})


def migrate() -> None:
    call_command("migrate", verbosity=0)


def test_a_schedule_without_a_handler_is_found() -> None:
    schedule = due_schedule()
    assert not findings(examine_schedules, "D306")
    register_worker("old", job_types={"app.add": 1})
    (unhandled,) = findings(examine_schedules, "D306")
    assert unhandled.facts == {"schedule": "tick", "job_type": "app.noop"}
    register_worker("new")
    assert not findings(examine_schedules, "D306")
    schedule.enabled = False
    schedule.save()
    workers.end(register_worker())
    assert not findings(examine_schedules, "D306")


def test_a_schedule_that_has_ended_needs_no_handler() -> None:
    schedule = due_schedule()
    register_worker("new", job_types={"app.add": 1})
    schedule.next_due_at = None
    schedule.save(update_fields=["next_due_at"])
    assert schedule.state_at(schedule.starts_at) == "ended"
    assert not findings(examine_schedules, "D306")
    schedule.stale = True  # an edit may let it go on, which a worker finds out
    schedule.save(update_fields=["stale"])
    assert findings(examine_schedules, "D306")


def test_schedules_with_an_error_are_found() -> None:
    due_schedule(job_type="app.noop", payload={"what": 1})
    register_worker()
    assert not findings(examine_schedules, "D307")
    look()
    (broken,) = findings(examine_schedules, "D307")
    assert "schedules with an error: 1" in broken.problem


def due_in(days: float, **rule: Any) -> Schedule:
    row = due_schedule(**rule)
    run_sql(
        "UPDATE django_jobs_schedule SET next_due_at = now() + make_interval(secs => %s)"
        " WHERE id = %s",
        [days * 86_400, row.pk],
    )
    return row


@pytest.mark.parametrize(
    "days, rule",
    [
        (200, {"every": 1.0}),
        (0.002, {"every": 1.0}),
        (200, {"cron": "* * * * *", "every": None}),
        (800, {"cron": "0 0 1 1 *", "every": None}),
        (30, {"every": 86_400.0, "timezone": "Asia/Tokyo"}),
    ],
)
def test_a_schedule_that_passes_over_due_times_is_found_until_it_is_resumed(
    days: float, rule: dict[str, Any]
) -> None:
    schedule = due_in(days, **rule)
    due_in(0.5, name="on time", every=86_400.0)
    due_in(300, name="yearly", cron="0 0 1 1 *", every=None)
    due_in(200, name="paused", every=1.0, enabled=False)
    (found,) = findings(examine_due_times, "D313")
    assert found.facts["schedule"] == "tick"
    for command in found.commands:
        call_command(*command.removeprefix("manage.py ").split(), verbosity=0)
    look()
    assert not findings(examine_due_times, "D313")
    schedule.refresh_from_db()
    assert schedule.next_due_at is not None


def test_a_schedule_whose_next_due_times_are_moved_passes_over_none() -> None:
    schedule = due_schedule(-3600.0)
    first = schedule.starts_at
    assert first is not None
    for hours in (0, 1, 2):
        due = first + hours * dt.timedelta(hours=1)
        move_occurrence("tick", due, due + dt.timedelta(minutes=190))
    schedule.refresh_from_db()
    assert schedule.next_due_at == first + dt.timedelta(hours=3)
    assert not findings(examine_due_times, "D313")
    other = due_in(9, name="ahead", every=3600.0)
    ScheduleException.objects.create(schedule=other, due_at=first, moved_to=other.created_at)
    (found,) = findings(examine_due_times, "D313")
    assert found.facts["schedule"] == "ahead"


def test_a_due_time_at_infinity_and_a_rule_that_nobody_reads_are_other_findings() -> None:
    due_schedule()
    run_sql("UPDATE django_jobs_schedule SET next_due_at = 'infinity'")
    broken = due_in(9, name="broken", cron="* * * * *", every=None)
    run_sql("UPDATE django_jobs_schedule SET timezone = 'Moon' WHERE id = %s", [broken.pk])
    due_in(9, name="never", every=1.0)
    run_sql("UPDATE django_jobs_schedule SET starts_at = 'infinity' WHERE name = 'never'")
    assert not findings(examine_due_times, "D313")


def test_a_declared_schedule_that_no_migrate_has_written_is_found() -> None:
    schedule("nightly", noop, cron="0 3 * * *")
    schedule("some day", noop, cron="0 3 * * *", enabled=False)
    (missing,) = diagnosis_of(examine_declarations).findings
    assert (missing.id, missing.facts) == ("django_jobs.D310", {"schedule": "nightly"})
    assert missing.commands == ("manage.py migrate",)
    migrate()
    assert not diagnosis_of(examine_declarations).findings


def test_a_schedule_that_code_declares_otherwise_is_found_until_migrate() -> None:
    schedule("nightly", noop, cron="0 3 * * *")
    migrate()
    registry.forget_schedule("nightly")
    schedule("nightly", noop, every=60, queue="bulk")
    (changed,) = diagnosis_of(examine_declarations).findings
    assert changed.id == "django_jobs.D311"
    assert changed.facts == {"schedule": "nightly", "changed": ["queue", "cron", "every"]}
    migrate()
    assert not diagnosis_of(examine_declarations).findings


def test_a_row_by_hand_that_code_declares_too_is_found() -> None:
    due_schedule(name="nightly", starts_at=None)
    schedule("nightly", noop, every=3600.0)
    (changed,) = findings(examine_declarations, "D311")
    assert changed.facts["changed"] == ["declared"]


def test_all_options_of_a_declaration_are_equal_once_they_are_written() -> None:
    paris = dt.timezone(dt.timedelta(hours=2))
    options: dict[str, Any] = {
        "payload": {"first": 1.5, "other": {"a": [None, "ü\\"]}},
        "starts_at": dt.datetime(2026, 5, 1, 12, 30, 0, 123_456, tzinfo=paris),
        "excluded_dates": [dt.date(2026, 12, 25), dt.date(2026, 5, 2)],
        "every": 0.1 + 3600,
        "jitter_seconds": 0.1,
        "priority": -3,
        "max_jobs": 7,
    }
    schedule("all", "elsewhere.only", **options)
    migrate()
    assert not diagnosis_of(examine_declarations).findings
    run_sql("UPDATE django_jobs_schedule SET starts_at = '-infinity'")
    (changed,) = findings(examine_declarations, "D311")
    assert changed.facts["changed"] == ["starts_at"]


def test_an_enabled_schedule_that_is_no_longer_declared_is_found_until_migrate() -> None:
    schedule("nightly", add, cron="0 3 * * *", payload={"first": 1})
    migrate()
    registry.forget_schedule("nightly")
    (gone,) = diagnosis_of(examine_declarations).findings
    assert (gone.id, gone.facts) == ("django_jobs.D312", {"schedule": "nightly"})
    assert gone.commands == ("manage.py migrate",)
    migrate()
    assert not diagnosis_of(examine_declarations).findings


def test_schedules_by_hand_and_those_of_other_projects_are_as_they_should_be() -> None:
    due_schedule(name="by hand")
    Schedule.objects.create(name="theirs", job_type="theirs.tidy", every=60, declared=True)
    migrate()
    assert not diagnosis_of(examine_declarations).findings


def test_many_schedules_out_of_step_are_not_all_listed() -> None:
    for number in range(30):
        schedule(f"s{number}", noop, every=60)
    assert len(findings(examine_declarations, "D310")) == 20
    migrate()
    registry._schedules.clear()
    assert len(findings(examine_declarations, "D312")) == 20
