"""Whoever changes several jobs at once takes them in the same order: nobody waits in a circle."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from django.db import transaction

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import enqueueing
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, give_back, settle
from django_jobs.models import Job
from tests.app.jobs import add
from tests.factories import claim_ready, in_threads, register_worker, run_sql
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

T = TypeVar("T")

JOBS = 300
ROUNDS = 15


def shuffled(items: list[T]) -> list[T]:
    return random.sample(items, len(items))


def test_operators_changing_the_same_jobs_do_not_deadlock() -> None:
    ids = enqueue_many("app.noop", [{}] * JOBS, delay=3600)
    verbs: list[Callable[[], object]] = [
        lambda: job_operations.reprioritize(shuffled(ids), random.randint(-100, 100)),
        lambda: job_operations.run_now(shuffled(ids)),
        lambda: job_operations.reprioritize(shuffled(ids), 7),
        lambda: job_operations.run_now(shuffled(ids)[: JOBS // 2]),
    ]

    def repeat(number: int) -> None:
        for turn in range(ROUNDS):
            verbs[number]()
            if number == 1 and turn % 3 == 0:
                with transaction.atomic():
                    run_sql("SELECT 1 FROM django_jobs_job ORDER BY id FOR NO KEY UPDATE")
                    run_sql("UPDATE django_jobs_job SET status = 'scheduled' WHERE id % 2 = 0")

    in_threads(4, repeat)
    job_operations.cancel(ids)
    assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}


def end_at_once(worker: int, held: list[ClaimedJob], ids: list[int]) -> None:
    def act(number: int) -> None:
        if number < 2:
            give_back([job.fence for job in shuffled(held[number::2])])
        else:
            job_operations.cancel(shuffled(ids))

    in_threads(5, act)


def test_operators_and_give_backs_do_not_deadlock() -> None:
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        ids = enqueue_many("app.noop", [{}] * JOBS)
        worker = register_worker()
        held = claim_ready(worker, limit=JOBS)
        end_at_once(worker, held, ids)
        # What an operator had in hand at that moment was left.
        give_back([job.fence for job in held])
        assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}


@pytest.mark.django_db
def test_a_settle_sends_its_signals_in_order() -> None:
    enqueue_many("app.noop", [{}] * 50)
    held = shuffled(claim_ready(register_worker()))
    endings = [Ending(job, Succeeded()) for job in held]
    assert [one.ending.job.id for one in settle(endings)] == [job.id for job in held]


@pytest.mark.parametrize("batch", [5_000, 1])
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}])
def test_requests_for_the_same_keys_in_opposite_orders_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch, batch: int, options: dict[str, Any]
) -> None:
    """Also where one call is several statements of one transaction. A third holds the key in the
    middle until both wait: for it, or the second for the first."""
    monkeypatch.setattr(enqueueing, "BATCH", batch)
    keys = ["a", "b", "m", "y", "z"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
    held = threading.Event()

    def act(number: int) -> list[int]:
        with transaction.atomic():
            if number == 0:
                add.using(idempotency_key="m").enqueue(0)
                held.set()
                until(lambda: run_sql(f"{waiting} current_database()") == [(2,)])
                transaction.set_rollback(True)
                return []
            assert held.wait(PATIENCE)
            mine = keys if number == 1 else keys[::-1]
            return enqueue_many("app.add", [{"first": 1}] * 5, idempotency_keys=mine, **options)

    _, ids, others = in_threads(3, act)
    assert ids == others[::-1]
    assert dict(Job.objects.values_list("idempotency_key", "pk")) == dict(
        zip(keys, ids, strict=True)
    )


@pytest.mark.django_db
def test_keys_change_nothing_of_the_order_in_which_jobs_begin() -> None:
    keys = ["z", None, "a", "m", None, "a"]
    ids = enqueue_many("app.noop", [{}] * 6, idempotency_keys=keys)
    assert ids[5] == ids[2]
    assert ids[:5] == sorted(ids[:5])
    assert [job.id for job in claim_ready(register_worker())] == ids[:5]
