"""Whoever changes several jobs at once takes them in the same order: nobody waits in a circle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import pytest
from django.db import transaction

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import operating
from django_jobs.lifecycle.claiming import HeldJob
from django_jobs.lifecycle.settling import Ending, give_back, settle
from django_jobs.models import Job
from tests.factories import boot_worker, claim_ready, in_threads, run_sql

T = TypeVar("T")

JOBS = 300
ROUNDS = 15


def shuffled(items: list[T]) -> list[T]:
    return random.sample(items, len(items))


@pytest.mark.django_db(transaction=True)
def test_operators_who_change_the_same_jobs_do_not_deadlock() -> None:
    ids = enqueue_many("app.noop", [{}] * JOBS, delay=3600)
    verbs: list[Callable[[], object]] = [
        lambda: operating.reprioritize(shuffled(ids), random.randint(-100, 100)),
        lambda: operating.run_now(shuffled(ids)),
        lambda: operating.reprioritize(shuffled(ids), 7),
        lambda: operating.run_now(shuffled(ids)[: JOBS // 2]),
    ]

    def repeat(number: int) -> None:
        for turn in range(ROUNDS):
            verbs[number]()
            if number == 1 and turn % 3 == 0:
                with transaction.atomic():
                    run_sql("SELECT 1 FROM django_jobs_job ORDER BY id FOR NO KEY UPDATE")
                    run_sql("UPDATE django_jobs_job SET status = 'scheduled' WHERE id % 2 = 0")

    in_threads(4, repeat)
    operating.cancel(ids)
    assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}


def end_at_once(worker: int, held: list[HeldJob], ids: list[int]) -> None:
    def act(number: int) -> None:
        if number < 2:
            give_back(worker, [(job.id, job.attempt) for job in shuffled(held[number::2])])
        else:
            operating.cancel(shuffled(ids))

    in_threads(5, act)


@pytest.mark.django_db(transaction=True)
def test_operators_and_workers_that_give_back_do_not_deadlock() -> None:
    for _ in range(ROUNDS):
        Job.objects.all().delete()
        ids = enqueue_many("app.noop", [{}] * JOBS)
        worker = boot_worker()
        held = claim_ready(worker, limit=JOBS)
        end_at_once(worker, held, ids)
        # What an operator had in hand at that moment was left.
        give_back(worker, [(job.id, job.attempt) for job in held])
        assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}


@pytest.mark.django_db
def test_a_settle_tells_its_endings_in_the_order_they_came() -> None:
    enqueue_many("app.noop", [{}] * 50)
    held = shuffled(claim_ready(boot_worker()))
    endings = [Ending(job, Succeeded()) for job in held]
    assert [one.ending.job.id for one in settle(endings)] == [job.id for job in held]
