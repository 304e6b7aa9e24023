"""Dead jobs beyond a limit go, the oldest first, and not before receivers have seen them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextlib import nullcontext as none
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_jobs.api import JobType
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.retention import ALL, Kept
from django_jobs.lifecycle.dead_letters import (
    DeadLimit,
    PruningRefused,
    count_dead,
    prune_dead,
    queues_with_dead,
)
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Receipt, Run
from django_jobs.signals import pre_prune_dead
from tests.app.jobs import add, noop
from tests.factories import (
    enqueue_and_claim,
    heard,
    in_threads,
    make_dead,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

DAY = 86_400.0


def dead(count: int, job_type: JobType[..., Any] = noop, *args: Any, **options: Any) -> list[int]:
    """Makes dead jobs, the oldest first: the last died now, each a day later than the one before.
    Returns their ids."""
    ids = [make_dead(job_type, *args, **options).pk for _ in range(count)]
    for days, id_ in enumerate(reversed(ids)):
        run_sql(
            "UPDATE django_jobs_job SET finished_at = now() - make_interval(days => %s)"
            " WHERE id = %s",
            [days, id_],
        )
    return ids


def of_queue(name: str = "default", *but: str, **kept: Any) -> DeadLimit:
    return DeadLimit(column="queue", name=name, kept=Kept(**kept), but=but)


def of_type(name: str, **kept: Any) -> DeadLimit:
    return DeadLimit(column="job_type", name=name, kept=Kept(**kept))


def there() -> list[int]:
    return list(Job.objects.order_by("pk").values_list("pk", flat=True))


@contextmanager
def receiving(receiver: Callable[..., None]) -> Iterator[None]:
    """With this receiver inside the block."""
    pre_prune_dead.connect(receiver)
    try:
        yield
    finally:
        pre_prune_dead.disconnect(receiver)


# What goes


def test_the_newest_dead_jobs_are_kept_and_the_others_deleted() -> None:
    ids = dead(5)
    run_sql(
        "INSERT INTO django_jobs_receipt (job_id, key, attempt, made_at)"
        " SELECT id, 'charge', 1, now() FROM django_jobs_job"
    )
    assert prune_dead(of_queue(number=2)) == {("app.noop", "default", "number"): 3}
    assert there() == ids[3:]
    assert list(Run.objects.order_by("job").values_list("job_id", flat=True)) == ids[3:]
    assert list(Receipt.objects.order_by("job_id").values_list("job_id", flat=True)) == ids[3:]
    assert prune_dead(of_queue(number=2)) == {}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_as_are_kept_stay(count: int) -> None:
    ids = dead(count)
    assert prune_dead(of_queue(number=3)) == {}
    assert there() == ids


def test_the_oldest_dead_job_is_the_one_that_died_first() -> None:
    first, second = dead(2)
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '1 y' WHERE id = %s", [second]
    )
    prune_dead(of_queue(number=1))
    assert there() == [first]


def test_the_limit_is_exact_for_jobs_that_died_at_the_same_time() -> None:
    ids = dead(6)
    run_sql("UPDATE django_jobs_job SET finished_at = '2026-01-01T00:00:00Z'")
    assert prune_dead(of_queue(number=2)).total() == 4
    assert there() == ids[4:]


def test_dead_jobs_beyond_their_age_are_deleted() -> None:
    ids = dead(5)
    assert prune_dead(of_queue(age=2.5 * DAY)) == {("app.noop", "default", "age"): 2}
    assert there() == ids[2:]


@pytest.mark.parametrize("age, number, left", [(3.5, 2, 2), (1.5, 4, 2), (0.5, 1, 1), (9, 9, 6)])
def test_the_stricter_of_two_limits_applies_and_is_the_reason(
    age: float, number: int, left: int
) -> None:
    ids = dead(6)
    too_old = sum(days > age for days in range(6))
    gone = prune_dead(of_queue(age=age * DAY, number=number))
    reasons = {"age": too_old, "number": 6 - left - too_old}
    assert gone == {("app.noop", "default", why): count for why, count in reasons.items() if count}
    assert there() == ids[6 - left :]


def test_without_a_limit_nothing_goes() -> None:
    ids = dead(3)
    for kept in (ALL, Kept(age=3e13)):
        limit = DeadLimit(column="queue", name="default", kept=kept)
        assert prune_dead(limit) == count_dead(limit) == {}
    assert there() == ids


def test_a_limit_of_a_queue_does_not_affect_other_queues() -> None:
    others = [*dead(2, queue="bulk"), *dead(2, add, 1, 2)]
    ids = dead(3)
    assert prune_dead(of_queue("default", "app.add", number=1)).total() == 2
    assert there() == sorted([*others, ids[2]])


def test_a_limit_of_a_job_type_counts_all_its_queues() -> None:
    others = dead(2)
    ids = [*dead(2, add, 1, 2, queue="bulk"), *dead(2, add, 1, 2)]
    # Two died now, one in each queue, and two a day ago.
    assert prune_dead(of_type("app.add", number=2)) == {
        ("app.add", "bulk", "number"): 1,
        ("app.add", "default", "number"): 1,
    }
    assert there() == sorted([*others, ids[1], ids[3]])


def test_a_limit_of_a_job_type_can_be_applied_to_one_queue() -> None:
    ids = [*dead(2, add, 1, 2, queue="bulk"), *dead(2, add, 1, 2)]
    limit = of_type("app.add", number=2)
    assert count_dead(limit, queue="bulk") == {("app.add", "bulk", "number"): 1}
    assert prune_dead(limit, queue="bulk").total() == 1
    assert there() == ids[1:]


def test_only_dead_jobs_count_and_only_they_go() -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    noop.enqueue()
    enqueue_and_claim(queue="bulk")
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '1 year'")
    ids = there()
    assert prune_dead(of_queue(number=1, age=1.0)) == {}
    assert there() == ids


def test_the_oldest_go_first_a_page_at_a_time() -> None:
    ids = dead(7)
    limit = of_queue(number=2)
    assert count_dead(limit) == {("app.noop", "default", "number"): 5}
    assert prune_dead(limit, page=2).total() == 2
    assert there() == ids[2:]
    assert [prune_dead(limit, page=2).total() for _ in range(3)] == [2, 1, 0]
    assert there() == ids[5:]


def test_queues_with_dead_jobs_are_found_without_their_row() -> None:
    assert queues_with_dead() == []
    noop.enqueue()
    dead(2, queue="bulk")
    dead(1, queue="emails")
    run_sql("DELETE FROM django_jobs_queue WHERE name = 'bulk'")
    assert queues_with_dead() == ["bulk", "emails"]


# What receivers see


def test_a_receiver_gets_the_jobs_before_they_are_deleted() -> None:
    ids = [*dead(3), *dead(2, add, 1, 2)]
    seen = []

    def export(sender: str, job_ids: list[int], **keywords: Any) -> None:
        rows = list(Job.objects.filter(pk__in=job_ids).values_list("job_type", "status"))
        seen.append((rows, Run.objects.filter(job__in=job_ids).count()))

    with receiving(export), heard(pre_prune_dead) as sent:
        prune_dead(of_queue(age=1.5 * DAY, number=2))
    # By their end: two died now, of each type one; two a day ago, and one two days ago.
    assert sent == [
        {"sender": "app.noop", "job_ids": [ids[0]], "queue": "default", "reason": "age"},
        {"sender": "app.noop", "job_ids": [ids[1]], "queue": "default", "reason": "number"},
        {"sender": "app.add", "job_ids": [ids[3]], "queue": "default", "reason": "number"},
    ]
    noops, adds = ([("app.noop", "dead")], 1), ([("app.add", "dead")], 1)
    assert seen == [noops, noops, adds]
    assert there() == [ids[2], ids[4]]


def test_no_signal_is_sent_without_a_deletion() -> None:
    dead(3)
    with heard(pre_prune_dead) as sent:
        prune_dead(of_queue(number=3))
        assert count_dead(of_queue(number=1)).total() == 2
    assert sent == []
    assert Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broken", [False, True], ids=["export fails", "transaction is broken"])
def test_jobs_of_a_receiver_that_raises_are_kept_and_retried(broken: bool) -> None:
    ids = dead(3)

    def export(**keywords: Any) -> None:
        if broken:
            run_sql("INSERT INTO django_jobs_queue SELECT * FROM django_jobs_queue")
        raise OSError("disk full")

    problem = "IntegrityError: duplicate key" if broken else "raised OSError: disk full"
    with receiving(export), pytest.raises(PruningRefused, match=problem) as refusal:
        prune_dead(of_queue(number=1))
    assert isinstance(refusal.value.__cause__, IntegrityError if broken else OSError)
    assert there() == ids
    assert Run.objects.count() == 3
    assert prune_dead(of_queue(number=1)).total() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
def test_an_error_of_the_database_that_a_receiver_hides_refuses_too(atomic: bool) -> None:
    ids = dead(3)

    def export(**keywords: Any) -> None:
        with suppress(IntegrityError), transaction.atomic(savepoint=False) if atomic else none():
            run_sql("INSERT INTO django_jobs_queue SELECT * FROM django_jobs_queue")

    with receiving(export), pytest.raises(PruningRefused, match="hid an error of the database"):
        prune_dead(of_queue(number=1))
    assert there() == ids
    assert prune_dead(of_queue(number=1)).total() == 2


@pytest.mark.django_db(transaction=True)
def test_writes_of_receivers_commit_only_with_the_deletion() -> None:
    dead(2)

    def write(**keywords: Any) -> None:
        run_sql("UPDATE django_jobs_queue SET paused_reason = 'exported' WHERE name = 'bulk'")

    def refuse(**keywords: Any) -> None:
        raise OSError

    written = "SELECT count(*) FROM django_jobs_queue WHERE paused_reason = 'exported'"
    with receiving(write):
        with receiving(refuse), pytest.raises(PruningRefused):
            prune_dead(of_queue(number=1))
        assert run_sql(written) == [(0,)]
        prune_dead(of_queue(number=1))
    assert run_sql(written) == [(1,)]
    run_sql("UPDATE django_jobs_queue SET paused_reason = ''")


def test_a_job_that_a_receiver_replays_stays() -> None:
    ids = dead(3)

    def rescue(job_ids: list[int], **keywords: Any) -> None:
        job_operations.replay(job_ids[:1], check=lambda job: None)

    with receiving(rescue):
        assert prune_dead(of_queue(number=1)) == {("app.noop", "default", "number"): 1}
    assert there() == [ids[0], ids[2]]
    assert Job.objects.get(pk=ids[0]).status == "ready"
    assert Run.objects.filter(job=ids[0]).exists()


# Others at the same time


@pytest.mark.django_db(transaction=True)
def test_a_job_being_replayed_is_kept_and_not_replaced_by_another() -> None:
    ids = dead(4)
    limit = of_queue(number=2)
    with transaction.atomic():
        job_operations.replay(ids[:1], check=lambda job: None)
        assert in_threads(1, lambda _: prune_dead(limit).total()) == [1]
    assert there() == [ids[0], *ids[2:]]
    assert prune_dead(limit) == {}
    assert Job.objects.get(pk=ids[0]).status == "ready"


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_being_deleted_is_not_replayed() -> None:
    ids = dead(2)
    replayed: list[list[int]] = []

    def replay_meanwhile(**keywords: Any) -> None:
        # In another session, which does not get the lock.
        def replay(_: int) -> list[int]:
            run_sql("SET lock_timeout = '50ms'")
            with pytest.raises(Exception, match="lock timeout"):
                job_operations.replay(ids[:1], check=lambda job: None)
            return []

        replayed.extend(in_threads(1, replay))

    with receiving(replay_meanwhile):
        assert prune_dead(of_queue(number=1)).total() == 1
    assert replayed == [[]]
    refused = job_operations.replay(ids[:1], check=lambda job: None).refused
    assert refused == {ids[0]: "there is no such job"}


@pytest.mark.django_db(transaction=True)
def test_concurrent_pruning_keeps_the_exact_number() -> None:
    ids = dead(60)

    def prune(number: int) -> int:
        gone = 0
        while Job.objects.count() > 20:
            gone += prune_dead(of_queue(number=20), page=7).total()
        return gone

    with heard(pre_prune_dead) as sent:
        assert sum(in_threads(5, prune)) == 40
    assert there() == ids[40:]
    assert sorted(id_ for one in sent for id_ in one["job_ids"]) == ids[:40]


@pytest.mark.django_db(transaction=True)
def test_among_replays_none_of_the_newest_is_ever_deleted() -> None:
    """Of forty the ten newest are kept, five of which are replayed meanwhile."""
    ids = dead(40)

    def act(number: int) -> None:
        if number == 0:
            for id_ in ids[25:35]:
                job_operations.replay([id_], check=lambda job: None)
        else:
            for _ in range(20):
                prune_dead(of_queue(number=10), page=3)

    in_threads(4, act)
    statuses = dict(Job.objects.filter(pk__in=ids[30:]).values_list("pk", "status"))
    assert statuses == {**dict.fromkeys(ids[30:35], "ready"), **dict.fromkeys(ids[35:], "dead")}
    assert Job.objects.filter(status="dead").count() <= 10
