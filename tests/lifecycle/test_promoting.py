"""scheduled -> ready, when due."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_jobs import enqueue_many
from django_jobs.lifecycle.promoting import promote
from django_jobs.models import Job
from tests.app.jobs import noop
from tests.factories import claim_ready, in_threads, register_worker, run_sql

pytestmark = pytest.mark.django_db


def let_all_be_due() -> None:
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 s'")


def test_due_jobs_become_ready_and_others_stay() -> None:
    due, later = noop.using(delay=100).enqueue(), noop.using(delay=100).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() WHERE id = %s", [due.pk])
    assert promote() == (1, {"default"})
    assert Job.objects.get(pk=due.pk).status == "ready"
    assert Job.objects.get(pk=later.pk).status == "scheduled"
    assert promote() == (0, set())


def test_promoting_returns_the_queues_to_notify() -> None:
    noop.using(delay=100).enqueue()
    noop.using(delay=100, queue="bulk").enqueue()
    let_all_be_due()
    assert promote() == (2, {"default", "bulk"})


def test_the_longest_due_jobs_are_promoted_first() -> None:
    ids = enqueue_many("app.noop", [{}] * 3, delay=100)
    for age, id_ in enumerate(ids):
        run_sql(
            "UPDATE django_jobs_job SET available_at = now() - make_interval(secs => %s)"
            " WHERE id = %s",
            [age, id_],
        )
    promote(limit=1)
    assert Job.objects.get(status="ready").pk == ids[2]


def test_a_promoted_job_keeps_its_rank_and_can_be_claimed() -> None:
    rank = noop.using(delay=100, priority=3).enqueue().rank
    let_all_be_due()
    promote()
    (held,) = claim_ready(register_worker())
    assert held.rank == rank


def test_a_job_whose_wait_for_a_signal_is_over_becomes_ready() -> None:
    over, later, step = (noop.using(delay=100).enqueue() for _ in range(3))
    run_sql("UPDATE django_jobs_job SET status = 'waiting'")
    run_sql(
        "UPDATE django_jobs_job SET awaits = 'approval' WHERE id IN (%s, %s)", [over.pk, later.pk]
    )
    run_sql("UPDATE django_jobs_job SET available_at = now() WHERE id <> %s", [later.pk])
    assert promote() == (1, {"default"})
    after = {job.pk: (job.status, job.awaits) for job in Job.objects.all()}
    assert after == {
        over.pk: ("ready", None),
        later.pk: ("waiting", "approval"),
        step.pk: ("waiting", None),
    }
    assert promote() == (0, set())


@pytest.mark.django_db(transaction=True)
def test_concurrent_promotions_share_the_work_without_waiting() -> None:
    enqueue_many("app.noop", [{}] * 300, delay=100)
    let_all_be_due()
    locked = Job.objects.earliest("pk")
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=locked.pk)
        counts = in_threads(5, lambda _: sum(iter(lambda: promote(limit=20)[0], 0)))
    assert sum(counts) == 299
    assert list(Job.objects.filter(status="scheduled")) == [locked]
