"""The table of jobs: what its constraints refuse, and what its rows say."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from django_jobs import Backoff
from django_jobs.domain.outcomes import Succeeded
from django_jobs.models import DeadLetter, Job
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, make_dead, run_sql, settle_one


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change, constraint",
    [
        ("status = 'paused'", "no partition of relation"),
        ("status = 'running'", "django_jobs_worker_iff_running"),
        ("worker_id = 1", "django_jobs_worker_iff_running"),
        ("priority = 101", "django_jobs_priority"),
        ("priority = -101", "django_jobs_priority"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_the_database(
    change: str, constraint: str
) -> None:
    noop.enqueue()
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        run_sql(f"UPDATE django_jobs_job SET {change}")


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["paused", "succeeded", "cancelled"])
def test_the_partition_of_live_jobs_refuses_any_other_status(status: str) -> None:
    noop.enqueue()
    with pytest.raises(IntegrityError, match="violates partition"), transaction.atomic():
        run_sql("UPDATE django_jobs_job_live SET status = %s", [status])


@pytest.mark.django_db
def test_two_live_jobs_of_one_queue_cannot_hold_one_key() -> None:
    noop.using(idempotency_key="k").enqueue()
    other = noop.using(idempotency_key="l").enqueue()
    with pytest.raises(IntegrityError, match="django_jobs_live_key"), transaction.atomic():
        run_sql("UPDATE django_jobs_job SET idempotency_key = 'k' WHERE id = %s", [other.pk])


@pytest.mark.django_db
def test_finished_jobs_may_share_a_key() -> None:
    for _ in range(2):
        settle_one(enqueue_and_claim(idempotency_key="k"), Succeeded())
    assert Job.objects.filter(idempotency_key="k").count() == 2


@pytest.mark.django_db
def test_a_job_says_whether_it_has_ended() -> None:
    live, dead = noop.enqueue(), make_dead()
    assert (live.is_live, live.is_final) == (True, False)
    assert (dead.is_live, dead.is_final) == (False, True)
    assert str(live) == f"app.noop #{live.pk}"


@pytest.mark.django_db
def test_the_querysets_find_live_and_dead_jobs_and_the_holder_of_a_key() -> None:
    dead = make_dead(idempotency_key="k")
    holder = noop.using(idempotency_key="k").enqueue()
    assert list(Job.objects.live()) == [holder]
    assert list(Job.objects.dead()) == [dead]
    assert list(Job.objects.holding_key("default", "k")) == [holder]
    assert [letter.pk for letter in DeadLetter.objects.all()] == [dead.pk]


def test_a_job_without_a_rule_backs_off_by_the_default() -> None:
    assert Job(backoff=None).backoff_rule == Backoff.exponential()
    assert Job(backoff=Backoff.fixed(3).as_json()).backoff_rule == Backoff.fixed(3)


@pytest.mark.parametrize("habit", ["get", "ready", "successful", "failed", "state"])
def test_attributes_of_other_libraries_raise_with_a_hint(habit: str) -> None:
    job = Job(pk=7)
    assert not hasattr(job, habit)
    with pytest.raises(AttributeError) as refused:
        getattr(job, habit)
    assert str(refused.value) == (
        f"'Job' object has no attribute {habit!r}; write job.wait(), or job.refresh_from_db(), and "
        "then read job.status and job.result"
    )
