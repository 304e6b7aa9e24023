"""Ticks, jobs and next due times are written together, and each due time once."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction

from django_jobs.api.schedules import request_of
from django_jobs.domain.policies import TickState
from django_jobs.lifecycle.schedules.firing import NewTick, advance, write_ticks
from django_jobs.models import Job, Schedule, Tick
from tests.app.jobs import tell_due_time
from tests.factories import (
    claim_ready,
    due_schedule,
    in_threads,
    listening,
    register_worker,
)

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def fired(schedule: Schedule, due: dt.datetime = NOON, **options: object) -> NewTick:
    return NewTick(schedule=schedule.pk, due=due, request=request_of(schedule), **options)  # type: ignore[arg-type]


def skipped(schedule: Schedule, due: dt.datetime = NOON, reason: str = "so") -> NewTick:
    state = TickState.SKIPPED_OVERLAP
    return NewTick(schedule=schedule.pk, due=due, outcome=state, reason=reason)


def test_a_tick_of_a_fired_due_time_is_not_replaced() -> None:
    schedule = due_schedule()
    ((_, job),) = write_ticks([fired(schedule)])
    for again in (fired(schedule), skipped(schedule), fired(schedule, backfill=1)):
        assert write_ticks([again]) == []
    tick = Tick.objects.get()
    assert (tick.outcome, tick.job_id, Job.objects.get().pk) == ("fired", job, job)


def test_only_a_backfill_replaces_the_tick_of_a_skipped_due_time() -> None:
    schedule = due_schedule()
    write_ticks([skipped(schedule)])
    assert write_ticks([fired(schedule)]) == []
    assert not Job.objects.exists()
    row = schedule.backfills.create(begins_at=NOON, ends_at=NOON)
    ((_, job),) = write_ticks([fired(schedule, backfill=row.pk)])
    assert Tick.objects.values_list("outcome", "job_id", "reason").get() == ("fired", job, "")


def test_a_due_time_fired_twice_at_once_is_written_once() -> None:
    schedule = due_schedule()
    assert len(write_ticks([fired(schedule), fired(schedule)])) == 1
    assert Tick.objects.count() == Job.objects.count() == 1


def test_nothing_is_written_for_no_ticks() -> None:
    assert write_ticks([]) == []
    advance({}, {})


def test_a_reason_is_cut_to_what_fits() -> None:
    write_ticks([skipped(due_schedule(), reason="x" * 1000)])
    assert len(Tick.objects.get().reason) == 300


def test_the_due_time_comes_with_the_claim() -> None:
    schedule = due_schedule(job_type=tell_due_time.name)
    write_ticks([fired(schedule)])
    (held,) = claim_ready(register_worker())
    assert held.scheduled_for == NOON.timestamp()


def test_the_last_due_time_is_kept_if_there_is_no_tick() -> None:
    schedule = due_schedule()
    later = NOON + dt.timedelta(hours=1)
    advance({schedule.pk: (later, NOON)}, {})
    advance({schedule.pk: (None, None)}, {})
    schedule.refresh_from_db()
    assert (schedule.next_due_at, schedule.last_due_at) == (None, NOON)


@pytest.mark.django_db(transaction=True)
def test_the_workers_of_the_queue_are_woken_once_it_is_committed() -> None:
    schedule = due_schedule(queue="bulk")
    with listening() as notified:
        with transaction.atomic():
            write_ticks([fired(schedule), fired(schedule, NOON + dt.timedelta(1))])
            assert notified() == []
        assert notified() == ["bulk"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_of_a_tick_make_one_job() -> None:
    schedule = due_schedule()
    made = in_threads(8, lambda number: len(write_ticks([fired(schedule)])))
    assert sorted(made) == [0] * 7 + [1]
    assert Job.objects.count() == 1
