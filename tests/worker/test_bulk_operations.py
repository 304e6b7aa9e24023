"""Real workers do operations on all jobs that match, and follow replay plans."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle.operations import bulk
from django_jobs.models import BulkOperation, Job
from tests.app import jobs
from tests.factories import copies_of, make_dead

from .processes import Start, until

pytestmark = pytest.mark.processes


def dead_jobs(count: int, job_type: str = "app.noop") -> list[int]:
    """As many dead jobs, of a handler that does nothing or of another one."""
    first = make_dead(jobs.noop)
    ids = [first.pk, *copies_of(first, count - 1, status="dead")]
    Job.objects.filter(pk__in=ids).update(job_type=job_type)
    return ids


def replay(plan: ReplayPlan | None) -> BulkOperation:
    return bulk.start("replay", {"status": "dead"}, plan=plan)


def until_ended(operation: BulkOperation) -> BulkOperation:
    """Without its rests, each nine times as long as the chunk before it took."""

    def has_ended() -> bool:
        bulk.postpone(operation.pk, 0)
        return not _read(operation).is_unfinished

    until(has_ended)
    return operation


def until_done(operation: BulkOperation, number: int) -> None:
    until(lambda: _read(operation).done >= number)


def _read(operation: BulkOperation) -> BulkOperation:
    operation.refresh_from_db()
    return operation


def replays() -> Counter[int]:
    return Counter(Job.objects.values_list("replays", flat=True))


def test_a_plan_over_handlers_that_still_fail_stops_after_the_first_job(
    start_worker: Start,
) -> None:
    dead_jobs(30, "app.fail")
    operation = replay(ReplayPlan())
    start_worker()
    until_ended(operation)
    assert (operation.status, operation.done, operation.failed) == ("stopped", 1, 1)
    assert operation.why.startswith("1 of the last 1 replayed jobs failed again: 100 %")
    assert replays() == {0: 29, 1: 1}


def test_a_plan_stops_when_the_second_wave_fails(start_worker: Start) -> None:
    ids = dead_jobs(30, "app.fail")
    Job.objects.filter(pk=ids[0]).update(job_type="app.noop")
    operation = replay(ReplayPlan(then=10))
    start_worker()
    until_ended(operation)
    assert (operation.status, operation.succeeded, operation.failed) == ("stopped", 1, 10)
    assert replays() == {0: 19, 1: 11}


def test_a_plan_over_healed_handlers_replays_each_job_once(start_worker: Start) -> None:
    dead_jobs(60)
    operation = replay(ReplayPlan(rate=100))
    start_worker()
    until_ended(operation)
    assert (operation.status, operation.done, operation.succeeded) == ("completed", 60, 60)
    assert replays() == {1: 60}
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}


def test_a_plan_is_stopped_in_the_middle_and_continues(start_worker: Start) -> None:
    dead_jobs(40)
    operation = replay(ReplayPlan(then=3, rate=1))
    start_worker()
    until_done(operation, 5)
    bulk.stop([operation.pk], by="ada")
    until_ended(operation)
    assert (operation.status, operation.why) == ("stopped", "stopped by ada")
    assert operation.done < 40
    assert replays() == {0: 40 - operation.done, 1: operation.done}
    bulk.resume([operation.pk])
    BulkOperation.objects.update(plan=ReplayPlan(rate=1_000).as_json())
    until_ended(operation)
    assert (operation.status, operation.succeeded) == ("completed", 40)
    assert replays() == {1: 40}


def test_nothing_is_replayed_twice_by_workers_that_are_killed(start_worker: Start) -> None:
    dead_jobs(150)
    # The attempts that a killed worker held are lost, which are failures: a third of the last ones.
    operation = replay(ReplayPlan(rate=30, most_failed=100))
    for number in (1, 22, 60):
        worker = start_worker("--lease-seconds", "5")
        until_done(operation, number)
        worker.signal_all(signal.SIGKILL)
    start_worker("--lease-seconds", "5")
    until_ended(operation)
    assert (operation.status, operation.done) == ("completed", 150)
    assert operation.succeeded + operation.failed == 150
    assert replays() == {1: 150}


def test_two_workers_share_an_operation(start_worker: Start) -> None:
    dead_jobs(200)
    operation = replay(None)
    for _ in range(2):
        start_worker()
    until_ended(operation)
    assert (operation.status, operation.done, operation.left) == ("completed", 200, 0)
    assert replays() == {1: 200}
