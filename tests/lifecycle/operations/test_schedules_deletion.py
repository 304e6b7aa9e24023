"""A schedule is deleted with its ticks, which may be millions."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Job, Schedule, Tick
from tests.app.jobs import noop
from tests.factories import due_schedule, make_user, run_sql

TICKS = """
INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds, created_at)
SELECT %s, now() - n * interval '1 minute', 'fired', '', 0, now() FROM generate_series(1, %s) AS n
"""


@pytest.fixture(autouse=True)
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_operations, "TICKS", 2)


def with_ticks(count: int, **fields: Any) -> Schedule:
    schedule = due_schedule(**fields)
    run_sql(TICKS, [schedule.pk, count])
    return schedule


@pytest.mark.django_db
def test_a_schedule_is_deleted_with_its_ticks_in_pages() -> None:
    noop.enqueue()
    schedule, other = with_ticks(5), with_ticks(1, name="other")
    with CaptureQueriesContext(connection) as captured:
        schedule_operations.delete(schedule)
    pages = [one for one in captured if one["sql"].lstrip().startswith("WITH page")]
    assert len(pages) == 4  # the last is empty
    assert Schedule.objects.get() == other
    assert Tick.objects.get().schedule == other
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_deletion_that_fails_keeps_all_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **options: Any) -> Any:
        raise RuntimeError("a receiver of the project")

    schedule = with_ticks(5)
    monkeypatch.setattr(Schedule, "delete", fail)
    with pytest.raises(RuntimeError):
        schedule_operations.delete(schedule)
    assert Tick.objects.count() == 5


@pytest.mark.django_db
def test_a_deletion_checks_its_permission_again() -> None:
    schedule = with_ticks(1)
    with pytest.raises(PermissionDenied, match=r"olga lacks .*delete_schedule"):
        schedule_operations.delete(schedule, actor=make_user("change_schedule"))
    assert Tick.objects.exists()
    schedule_operations.delete(schedule, actor=make_user("delete_schedule", name="otto"))
    assert not Schedule.objects.exists()
