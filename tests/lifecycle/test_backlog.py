"""A full queue refuses new jobs, or drops the lowest ready one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import IntegrityError, transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import QueueFull, cancel
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import backlog, enqueueing
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Queue, Run, UniqueKey
from django_jobs.signals import job_enqueued
from tests.app.gate_jobs import charge_account
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    copies_of,
    due_schedule,
    heard,
    in_threads,
    look,
    open_elsewhere,
    register_worker,
)

pytestmark = pytest.mark.django_db

REASON = "dropped: queue bulk was full"


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    """The queue bulk drops the lowest of more than 3 ready jobs."""
    Queue.objects.filter(name="bulk").update(max_backlog=3, on_full="drop_lowest")
    yield 3
    Queue.objects.filter(name="bulk").update(max_backlog=None, on_full="raise")


def bulk(priority: int = 0) -> int:
    return noop.using(queue="bulk", priority=priority).enqueue().pk


def ready() -> set[int]:
    return set(Job.objects.filter(queue="bulk", status="ready").values_list("pk", flat=True))


def dropped() -> dict[int, str]:
    return dict(Job.objects.filter(status="cancelled").values_list("pk", "reason"))


# Refusing


def test_many_jobs_that_do_not_all_fit_are_refused_together() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=3)
    jobs = noop.using(queue="bulk")
    jobs.enqueue()
    with pytest.raises(QueueFull, match=r"has room for 2 of 3 jobs.* is 3"):
        jobs.enqueue_many([{}] * 3)
    assert len(jobs.enqueue_many([{}] * 2)) == 2
    for keys in (None, ["a"]):
        with pytest.raises(QueueFull, match="have reached its max_backlog of 3"):
            jobs.enqueue_many([{}], idempotency_keys=keys)
    assert len(ready()) == 3


@pytest.mark.parametrize("unique_for", [None, 3600])
def test_a_request_that_replaces_needs_room_while_the_job_that_holds_its_key_runs(
    unique_for: int | None,
) -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=1)
    last = noop.using(
        queue="bulk", idempotency_key="a", on_duplicate="replace", unique_for=unique_for
    )
    held = last.enqueue()
    assert last.enqueue().pk == held.pk  # it has not started, so it is the same job
    (running,) = claim_ready(register_worker(), queue="bulk")
    filling = bulk()
    for _ in range(2):
        with pytest.raises(QueueFull, match="have reached its max_backlog of 1"):
            last.enqueue()
        assert Job.objects.get(pk=held.pk).idempotency_key == "a"
    assert ready() == {filling}
    cancel(filling)
    assert last.enqueue().pk != running.id
    assert Job.objects.get(pk=held.pk).idempotency_key is None


def test_earlier_batches_stay_if_a_later_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueueing, "BATCH", 2)
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    with pytest.raises(QueueFull, match="room for 1 of 2 jobs"):
        noop.using(queue="bulk").enqueue_many([{}] * 6)
    assert len(ready()) == 4


def test_jobs_that_are_not_ready_at_once_need_no_room_in_a_queue_that_is_not_full() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=2)
    bulk()
    assert len(noop.using(queue="bulk", delay=60).enqueue_many([{}] * 5)) == 5
    gated = charge_account.using(queue="bulk")
    with pytest.raises(QueueFull):
        gated.enqueue_many([{"account_id": number} for number in range(2)])
    gated.enqueue(7)
    for job_type in (noop.using(queue="bulk", delay=60), gated):
        with pytest.raises(QueueFull):
            job_type.enqueue_many([{"account_id": 7} if job_type is gated else {}])


# Dropping


def test_a_better_job_takes_the_place_of_the_lowest_one(limit: int) -> None:
    first, second, third = bulk(), bulk(5), bulk()
    best = bulk(10)
    assert ready() == {first, second, best}
    assert dropped() == {third: REASON}
    gone = Job.objects.get(pk=third)
    assert gone.finished_at is not None
    assert gone.cancel_requested_at is None
    assert not Run.objects.filter(job_id=third).exists()


def test_a_new_job_that_is_the_lowest_is_returned_as_cancelled(limit: int) -> None:
    kept = {bulk(), bulk(), bulk()}
    with heard(job_enqueued) as sent:
        new = noop.using(queue="bulk").enqueue()
    assert (new.status, new.reason) == ("cancelled", REASON)
    stored = Job.objects.get(pk=new.pk)
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(new, field.attname), field.name
    assert ready() == kept
    assert sent == []


def test_a_dropped_job_frees_its_key(limit: int) -> None:
    for _ in range(3):
        bulk()
    keyed = noop.using(queue="bulk", idempotency_key="k")
    first, second = keyed.enqueue(), keyed.enqueue()
    assert (first.status, second.status, second.deduplicated) == ("cancelled", "cancelled", False)
    held = keyed.using(priority=9).enqueue()
    again = keyed.enqueue()
    assert (again.pk, again.deduplicated, again.status) == (held.pk, True, "ready")


def test_a_dropped_job_frees_a_key_that_is_unique_for_a_time(limit: int) -> None:
    unique = noop.using(queue="bulk", unique_for=3_600)
    kept = [unique.using(idempotency_key=key).enqueue().pk for key in "abc"]
    assert unique.using(idempotency_key="d").enqueue().status == "cancelled"
    again = unique.using(idempotency_key="d", priority=5).enqueue()
    assert (again.status, again.deduplicated) == ("ready", False)
    assert dropped().keys() == {kept[2], again.pk - 1}
    assert set(UniqueKey.objects.values_list("key", "job_id")) == {
        ("a", kept[0]),
        ("b", kept[1]),
        ("d", again.pk),
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_of_many_jobs_those_that_do_not_fit_are_dropped(limit: int, keyed: bool) -> None:
    kept = [bulk(50), bulk()]
    keys = [str(number) for number in range(150)] if keyed else None
    ids = noop.using(queue="bulk", priority=10).enqueue_many([{}] * 150, idempotency_keys=keys)
    assert ready() == {kept[0], ids[0], ids[1]}
    assert dropped() == dict.fromkeys([kept[1], *ids[2:]], REASON)


def test_jobs_that_run_or_wait_for_their_time_are_neither_counted_nor_dropped(limit: int) -> None:
    running = bulk()
    claim_ready(register_worker(), "bulk")
    later = noop.using(queue="bulk", delay=60, priority=-50).enqueue()
    waiting = copies_of(noop.using(queue="bulk", priority=-50).enqueue(), 1, "waiting")[0]
    Job.objects.filter(status="ready").delete()
    kept = {bulk(), bulk(), bulk()}
    assert dropped() == {}
    bulk(1)
    assert len(dropped()) == 1
    assert set(dropped()) < kept
    rest = Job.objects.in_bulk([running, later.pk, waiting])
    assert {job.status for job in rest.values()} == {"running", "scheduled", "waiting"}


def test_a_limit_that_was_lowered_drops_few_at_a_time(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "SPARE", 2)
    Queue.objects.filter(name="bulk").update(max_backlog=20)
    for _ in range(10):
        bulk()
    Queue.objects.filter(name="bulk").update(max_backlog=3)
    Queue.objects.forget_recent()
    counts = [len(ready()) for _ in range(4) if bulk()]
    assert counts == [8, 6, 4, 3]


def test_the_job_of_a_schedule_drops_the_lowest_one_too(limit: int) -> None:
    kept = [bulk() for _ in range(3)]
    due_schedule(queue="bulk", priority=5)
    look()
    assert dropped() == {kept[2]: REASON}
    due_schedule(name="other", queue="bulk", priority=-5)
    look()
    last = Job.objects.get(schedule__name="other")
    assert (last.status, last.reason) == ("cancelled", REASON)


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_request_drops_nothing(limit: int) -> None:
    kept = {bulk(), bulk(), bulk()}
    with transaction.atomic():
        bulk(10)
        assert ready() != kept
        transaction.set_rollback(True)
    assert ready() == kept
    assert dropped() == {}


def test_a_queue_without_a_limit_takes_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    noop.enqueue()
    with django_assert_num_queries(1):
        noop.enqueue()


def test_another_word_for_a_full_queue_is_refused_by_the_database() -> None:
    with pytest.raises(IntegrityError, match="django_jobs_queue_on_full"), transaction.atomic():
        Queue.objects.filter(name="bulk").update(on_full="drop_all")


# At once


@pytest.mark.django_db(transaction=True)
def test_eight_producers_and_a_worker_lose_no_job_and_drop_none_that_runs(limit: int) -> None:
    """A job is ready, ran, or was dropped with its reason. What the producers leave above the limit
    is at most a job for each other one that was about to commit."""
    producers, jobs = 8, 40
    worker = register_worker()
    asked: list[list[int]] = [[] for _ in range(producers)]
    highest = []

    def act(number: int) -> None:
        if number == producers:
            for _ in range(60):
                held = claim_ready(worker, "bulk", limit=2)
                settle([Ending(job, Succeeded()) for job in held])
                highest.append(len(ready()))
            return
        for _ in range(jobs):
            asked[number].append(bulk(random.randint(-20, 20)))

    in_threads(producers + 1, act)
    every = {pk for some in asked for pk in some}
    states = Counter(Job.objects.values_list("status", "reason"))
    assert set(Job.objects.values_list("pk", flat=True)) == every
    assert set(states) <= {("ready", ""), ("succeeded", ""), ("cancelled", REASON)}
    assert max(highest) <= limit + producers
    ran = set(Run.objects.values_list("job_id", flat=True))
    assert ran == set(Job.objects.filter(status="succeeded").values_list("pk", flat=True))
    for _ in range(limit + 1):
        bulk()
    assert len(ready()) == limit


@pytest.mark.django_db(transaction=True)
def test_a_request_waits_for_no_job_that_another_session_has_locked(limit: int) -> None:
    kept = [bulk(), bulk(), bulk()]

    def act(number: int) -> None:
        bulk(20)

    with transaction.atomic():
        cancel(kept[2])
        in_threads(1, act)
        transaction.set_rollback(True)
    assert set(kept) < ready()  # the one above the limit goes with the next request
    bulk(20)
    assert ready() == {kept[0], *ready() - set(kept)}
    assert len(ready()) == limit


@pytest.mark.django_db(transaction=True)
def test_a_request_waits_for_no_key_that_another_session_has_locked(limit: int) -> None:
    kept = {bulk(), bulk()}
    noop.using(queue="bulk", idempotency_key="a", unique_for=3600).enqueue()
    with open_elsewhere("SELECT 1 FROM django_jobs_uniquekey FOR UPDATE"):
        (best,) = in_threads(1, lambda _: bulk(20))
    assert ready() == {*kept, best}
