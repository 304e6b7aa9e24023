"""The account of the chaos test about an edited schedule finds each due time that is missing,
double or of a former rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_jobs.models import Schedule, Tick
from tests.app.jobs import noop
from tests.chaos import edits
from tests.factories import run_sql

BEGIN = datetime(2026, 11, 28, tzinfo=UTC)
DUE = ((0, 0), (0, 1), (0, 2), (1, 5), (1, 7), (1, 9), (2, 9.5), (2, 10.5))
"""Rule and second. Between two rules due times may pass that belong to none."""
EVERY = (1.0, 2.0, 1.0)

pytestmark = pytest.mark.django_db


@pytest.fixture
def schedule(db: None) -> Schedule:
    made = Schedule.objects.create(name=edits.NAME, job_type=noop.name, every=1.0)
    for rule, second in DUE:
        add(made, rule, second)
    return made


def add(schedule: Schedule, rule: int, second: float) -> None:
    job = noop.enqueue()
    payload = f'{{"rule": {rule}, "every": {EVERY[rule]}}}'
    run_sql(
        "UPDATE django_jobs_job SET payload = %s, schedule_id = %s WHERE id = %s",
        [payload, schedule.pk, job.pk],
    )
    due_at = BEGIN + timedelta(seconds=second)
    made = {"outcome": "fired", "job_id": job.pk, "late_seconds": 0, "created_at": due_at}
    Tick.objects.create(schedule=schedule, due_at=due_at, **made)


def test_rules_that_follow_each_other_balance(schedule: Schedule) -> None:
    assert run_sql(edits.PROBLEM) == []
    assert run_sql(edits.COUNTED) == [(len(EVERY),)]


@pytest.mark.parametrize("second", [1, 7])
def test_a_due_time_that_is_left_out_does_not_balance(schedule: Schedule, second: float) -> None:
    Tick.objects.get(due_at=BEGIN + timedelta(seconds=second)).delete()
    assert len(run_sql(edits.PROBLEM)) == 1


@pytest.mark.parametrize("second", [1.5, 6, 8.5])
def test_a_due_time_too_many_does_not_balance(schedule: Schedule, second: float) -> None:
    add(schedule, 1 if second > 3 else 0, second)
    assert len(run_sql(edits.PROBLEM)) == 2


def test_a_due_time_of_a_former_rule_does_not_balance(schedule: Schedule) -> None:
    add(schedule, 0, 3)  # the next of its rule
    assert run_sql(edits.PROBLEM) == []
    add(schedule, 1, 11)  # by the rule before the last one
    assert len(run_sql(edits.PROBLEM)) == 1


def test_a_tick_without_its_job_does_not_balance(schedule: Schedule) -> None:
    due_at = BEGIN + timedelta(seconds=2)
    Tick.objects.filter(due_at=due_at).update(outcome="skipped_late", reason="why", job_id=None)
    assert len(run_sql(edits.PROBLEM)) == 1


def test_the_same_seed_makes_the_same_edits() -> None:
    made = edits.events(7, 60)
    assert made == edits.events(7, 60) != edits.events(8, 60)
    assert [one.rule for one in made] == list(range(1, len(made) + 1))
    assert all(0 < one.at < 60 and one.every in edits.INTERVALS for one in made)
    assert len(made) >= 10
