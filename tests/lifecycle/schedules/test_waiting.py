"""Jobs that wait for the one before of their schedule are let go one by one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from django_jobs.lifecycle.schedules.due import start_next_waiting
from django_jobs.models import Job, Schedule
from tests.factories import (
    due_schedule,
    in_threads,
    listening,
    open_elsewhere,
    run_sql,
)
from tests.moments import moment

pytestmark = pytest.mark.django_db


def job(schedule: Schedule | None, status: str = "waiting") -> int:
    """A job of a schedule."""
    ((id_,),) = run_sql(
        "INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority,"
        " rank, available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error,"
        " reason, replays, headers, created_at, schedule_id) VALUES ('default', 'app.noop', '{}',"
        " 1, %s, 0, 0, now(), 0, 0, 0, 5, 3, '', '', 0, '{}', now(), %s) RETURNING id",
        [status, schedule.pk if schedule else None],
    )
    return int(id_)


def ready() -> set[int]:
    return set(Job.objects.filter(status="ready").values_list("pk", flat=True))


def test_the_oldest_waiting_job_of_each_idle_schedule_starts() -> None:
    free, busy = due_schedule(name="free"), due_schedule(name="busy")
    first, _ = job(free), job(free)
    job(busy, "scheduled")
    job(busy)
    job(free, "succeeded")
    assert start_next_waiting() == 1
    assert ready() == {first}
    assert start_next_waiting() == 0


def test_a_job_that_waits_for_a_signal_has_begun() -> None:
    """It is not started again, and the next one of its schedule waits for its end."""
    schedule, gone = due_schedule(name="kept"), due_schedule(name="gone")
    begun, orphan = job(schedule), job(gone)
    gone.delete()
    Job.objects.filter(pk__in=[begun, orphan]).update(awaits="approval")
    following = job(schedule)
    assert start_next_waiting() == 0
    Job.objects.filter(pk=begun).update(status="dead", awaits=None)
    assert start_next_waiting() == 1
    assert ready() == {following}


def test_waiting_jobs_without_a_schedule_are_not_started() -> None:
    job(None)
    assert start_next_waiting() == 0
    assert not ready()


def test_waiting_jobs_of_a_deleted_schedule_all_start() -> None:
    gone = due_schedule()
    jobs = {job(gone), job(gone)}
    gone.delete()
    assert start_next_waiting() == 2
    assert ready() == jobs


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_waiting_job_starts_neither_before_its_due_time_nor_before_jobs_that_waited(
    is_deleted: bool,
) -> None:
    """Its jitter, or a moved due time, may be to come when the job before it ends."""
    early, late = due_schedule(name="early"), due_schedule(name="late")
    waited, to_come = job(late), job(early)
    hour = timedelta(hours=1)
    with moment() as now:
        before = {"available_at": now.first - hour, "rank": now.first.timestamp() - 3600}
        Job.objects.filter(pk=waited).update(**before)
        Job.objects.filter(pk=to_come).update(available_at=now.first + hour)
        if is_deleted:
            early.delete()
            late.delete()
        assert start_next_waiting() == 2
    assert ready() == {waited}
    started, scheduled = Job.objects.get(pk=waited), Job.objects.get(pk=to_come)
    assert started.available_at >= now.first
    assert started.rank >= now.first.timestamp()
    assert (scheduled.status, scheduled.available_at) == ("scheduled", now.first + hour)


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_is_skipped_without_waiting() -> None:
    first, second = due_schedule(name="a"), due_schedule(name="b")
    held, free = job(first), job(second)
    orphan = due_schedule(name="c")
    in_hand = job(orphan)
    run_sql("DELETE FROM django_jobs_schedule WHERE id = %s", [orphan.pk])
    with (
        open_elsewhere(
            "SELECT 1 FROM django_jobs_job WHERE id IN (%s, %s) FOR UPDATE", [held, in_hand]
        ),
        transaction.atomic(),
    ):
        assert start_next_waiting() == 1
    assert ready() == {free}


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_only_one_starts_the_next_waiting_job() -> None:
    schedule = due_schedule()
    for _ in range(5):
        job(schedule)

    def release(number: int) -> int:
        with transaction.atomic():
            return start_next_waiting()

    assert sum(in_threads(6, release)) == 1
    assert len(ready()) == 1


@pytest.mark.django_db(transaction=True)
def test_the_workers_of_its_queue_are_woken() -> None:
    job(due_schedule())
    with listening() as notified:
        with transaction.atomic():
            start_next_waiting()
        assert notified() == ["default"]
